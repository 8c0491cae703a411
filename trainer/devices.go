package trainer

import (
	"errors"
	"fmt"

	"gad/internal/comm"
	"gad/internal/compute"
)

// joinDevices connects the devices of the ranks, if the backend can: then gradients do not pass
// through the host's memory.
func (t *Trainer) joinDevices(s *start) (err error) {
	d, ok := t.be.(compute.Connectable)
	if !ok {
		return nil
	}
	if s.deviceLink, err = d.Connect(t.ranks); err != nil && !errors.Is(err, comm.ErrRanks) {
		err = fmt.Errorf("%w: %w", comm.ErrRanks, err)
	}
	return err
}
