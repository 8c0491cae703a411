package trainer

import "gad/internal/compute"

// joinDevices connects the devices of the ranks, if they can be: then gradients do not
// pass the host's memory.
func (t *Trainer) joinDevices() (err error) {
	if d, ok := t.be.(compute.Joinable); ok {
		t.joined, err = d.Join(t.ranks)
	}
	return err
}
