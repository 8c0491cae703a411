package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"

	"gad/internal/vfs"
)

// Export copies src, a checkpoint or a folder of one ("global_step_10/actor"), to dst, which must
// not exist. Each file is compared with the manifest while it is copied; dst appears whole, by a
// rename, or not at all, and is durable when Export returns nil. A whole checkpoint is copied with
// its manifest, a folder of one without a manifest.
//
// The error is ErrExists if dst is there, ErrCorrupt if src differs from its manifest, ErrSpace if
// the disk is too small. Two exports to one dst at a time work under [Alone].
func Export(fsys FS, src, dst string) error {
	fsys = vfs.OrDisk(fsys)
	src, dst = filepath.Clean(src), filepath.Clean(dst)
	// Before the copy is prepared: WriteFolder asks again.
	if err := CheckAbsent(fsys, dst, "folder"); err != nil {
		return err
	}
	files, whole, err := listExport(fsys, src)
	if err != nil {
		return err
	}
	var need int64
	for _, f := range files {
		if f.Size > math.MaxInt64-need {
			return fmt.Errorf("checkpoint: %s: %w: the sizes in its manifest overflow", src,
				ErrCorrupt)
		}
		need += f.Size
	}
	if err := CheckSpace(fsys, dst, need); err != nil {
		return err
	}
	return WriteFolder(fsys, dst, func(d *Dir) error {
		for _, f := range files {
			w, err := d.Create(f.Name)
			if err != nil {
				return err
			}
			if err := cmp.Or(copyFile(fsys, src, f, w), w.Close()); err != nil {
				return err
			}
		}
		if whole {
			return d.writeManifest()
		}
		return nil
	})
}

// listExport returns the files to export from src, with names relative to src, and whether src is a
// whole checkpoint. A folder of a checkpoint has no manifest of its own; its part is in the
// manifest above.
func listExport(fsys vfs.FS, src string) (files []fileEntry, whole bool, err error) {
	_, err = fsys.Stat(filepath.Join(src, manifestName))
	if err == nil {
		if files, err = readManifest(fsys, src); err != nil {
			return nil, true, err
		}
		return files, true, checkListing(fsys, src, files)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("checkpoint: %s: %w", src, err)
	}
	all, err := readManifest(fsys, filepath.Dir(src))
	if err != nil {
		return nil, false, fmt.Errorf(
			"checkpoint: %s: is neither a checkpoint nor a folder inside one: %w", src, err)
	}
	for _, f := range all {
		if name, ok := strings.CutPrefix(f.Name, filepath.Base(src)+"/"); ok {
			f.Name = name
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, false, fmt.Errorf(
			"checkpoint: %s: %w: the manifest of the folder above lists none of its files", src,
			ErrCorrupt)
	}
	return files, false, checkListing(fsys, src, files)
}
