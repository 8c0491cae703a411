package trainer

import (
	"errors"
	"fmt"

	"gad/internal/comm"
	"gad/internal/compute"
)

// joinDevices connects the devices of the ranks, if they can be: then gradients do not
// pass the host's memory.
func (t *Trainer) joinDevices(s *start) (err error) {
	d, ok := t.be.(compute.Connectable)
	if !ok {
		return nil
	}
	if s.joined, err = d.Connect(t.ranks); err != nil && !errors.Is(err, comm.ErrRanks) {
		err = fmt.Errorf("%w: %w", comm.ErrRanks, err)
	}
	return err
}

// wholeWeights brings what this rank lacks of the weights' bits, where the ranks' devices
// gather only those that are computed with (trainer.shard_optimizer).
func (t *Trainer) wholeWeights() error {
	for _, n := range t.learning() {
		if err := n.optim.WholeWeights(); err != nil {
			return err
		}
	}
	return nil
}
