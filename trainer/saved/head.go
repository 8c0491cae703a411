package saved

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"gad/checkpoint"
	"gad/critic"
	"gad/internal/vfs"
)

// HeadName is a file in the folder of a discriminator with head likelihood: its weights are a
// language model, from which alone the head cannot be known.
const HeadName = "discriminator.json"

// Head records how a discriminator's weights become scores (package critic).
type Head struct {
	Head        string  `json:"head"`        // value or likelihood
	Temperature float64 `json:"temperature"` // of the rollouts, and of both log-probabilities
	// Student is the folder of the student whose log-probabilities the score subtracts, relative to
	// the discriminator's folder; "" with head value.
	Student string `json:"student"`
}

// Bytes returns the content of HeadName.
func (h Head) Bytes() ([]byte, error) {
	raw, err := json.MarshalIndent(h, "", "  ")
	return append(raw, '\n'), err
}

// ReadHead returns the head of the discriminator in dir; without the file, a value head.
func ReadHead(fsys checkpoint.FS, dir string) (Head, error) {
	path := filepath.Join(dir, HeadName)
	raw, err := vfs.OrDisk(fsys).ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Head{Head: critic.Value, Temperature: 1}, nil
	}
	var h Head
	if err == nil {
		err = json.Unmarshal(raw, &h)
	}
	switch {
	case err != nil:
		return h, fmt.Errorf("critic: %s: %w", path, err)
	case h.Head != critic.Likelihood || !(h.Temperature > 0):
		return h, fmt.Errorf("critic: %s: head %q at temperature %g: expected likelihood above 0: it is of another version", path, h.Head, h.Temperature)
	}
	if h.Student != "" && !filepath.IsAbs(h.Student) {
		h.Student = filepath.Join(dir, h.Student)
	}
	return h, nil
}
