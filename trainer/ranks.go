package trainer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"gad/internal/conf"
	"gad/model"
	"gad/trainer/config"
)

// A run of several processes, its ranks (doc/ranks.md). Every rank runs the same trainer on the
// same rows and comes to the same numbers; model.Ranks divides the work and joins the results. Rank
// 0 alone writes files, prints, and starts the checker. A rank that fails notifies the others, and
// all end.

// first reports whether this process is rank 0, which writes the run's folder.
func (t *Trainer) first() bool { return t.ranks.Rank() == 0 }

// joinRanks requires the same settings and the same device on all ranks, since every rank takes the
// same optimizer steps, and connects the ranks' devices.
func (t *Trainer) joinRanks(s *start) error {
	n, c := t.ranks.Size(), t.cfg
	t.ranks.SetLimit(time.Duration(c.Trainer.RankTimeout) * time.Second)
	t.ranks.Enter("opening")
	if err := c.CheckRanks(n); err != nil {
		return err
	}
	if n == 1 {
		return nil
	}
	c = c.Absolute()
	c.Trainer.Threads = 0 // no bit depends on it
	text, err := conf.Marshal(&c)
	if err != nil {
		return err
	}
	if err := t.requireSame("settings", fmt.Sprintf("stage: %s\n%s", t.Stage, text)); err != nil {
		return err
	}
	if err := t.requireSame("device", t.be.Name()); err != nil {
		return err
	}
	return t.joinDevices(s)
}

// requireSame returns an error on all ranks unless text is the same on all of them; what names the
// text in the error.
func (t *Trainer) requireSame(what, text string) error {
	all, err := t.ranks.Gather(what, []byte(text))
	if err != nil {
		return err
	}
	hosts := t.ranks.Hosts()
	for r, other := range all {
		if string(other) == string(all[0]) {
			continue
		}
		was, is := differentLine(string(all[0]), string(other))
		return fmt.Errorf(
			"%w: ranks: %s: rank 0 on %s has %q, rank %d on %s has %q: must be the same",
			config.ErrConfig, what, hosts[0], was, r, hosts[r], is)
	}
	return nil
}

// requireSameInputs requires all ranks to have read the same rows with the same tokenizer, whatever
// files the paths lead to on their machines.
func (t *Trainer) requireSameInputs() error {
	if t.ranks.Size() == 1 {
		return nil
	}
	if err := t.requireSame("data", t.train.set.Digest()); err != nil {
		return err
	}
	if err := t.requireSame("order of rows", t.train.chosen); err != nil {
		return err
	}
	if t.val.set != nil {
		if err := t.requireSame("validation data", t.val.set.Digest()); err != nil {
			return err
		}
	}
	// with the day's date, where the chat template asks for it
	return t.requireSame("tokenizer", t.tok.Digest())
}

// differentLine returns the first line in which two texts differ.
func differentLine(a, b string) (lineA, lineB string) {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(as), len(bs)) {
		lineA, lineB = "", ""
		if i < len(as) {
			lineA = as[i]
		}
		if i < len(bs) {
			lineB = bs[i]
		}
		if lineA != lineB {
			break
		}
	}
	return strings.TrimSpace(lineA), strings.TrimSpace(lineB)
}

// rankZeroFirst runs f on rank 0, then on all others, which find the files that rank 0 has written.
func (t *Trainer) rankZeroFirst(what string, f func() error) error {
	if t.first() {
		if err := f(); err != nil {
			return err
		}
	}
	if err := t.ranks.Barrier(what); err != nil || t.first() {
		return err
	}
	return f()
}

// splitWork divides the models' work among the ranks.
func (t *Trainer) splitWork() error {
	for _, n := range t.networks() {
		if err := n.model.Split(t.ranks, t.cfg.Trainer.Shards); err != nil {
			return err
		}
	}
	return nil
}

// statesOver returns the ranks that divide AdamW's states among them; nil if each has all.
func (t *Trainer) statesOver() *model.Ranks {
	if !t.cfg.Trainer.ShardOptimizer {
		return nil
	}
	return t.ranks
}

// saveParts sends this rank's parts of the optimizer states to rank 0, in the order in which rank 0
// writes them (fill). All ranks but 0 call it while rank 0 commits a checkpoint.
func (t *Trainer) saveParts() error {
	for _, n := range t.trainable() {
		if n.optim.Sharded() {
			if err := n.optim.Save(io.Discard, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// requireSameWeights requires all ranks to hold the same weights: a rank whose memory or processor
// errs would otherwise corrupt the run. frozen includes the networks that do not change.
func (t *Trainer) requireSameWeights(frozen bool) error {
	if t.ranks.Size() == 1 {
		return nil
	}
	var sums []byte
	list := t.trainable()
	if frozen {
		list = t.networks()
	}
	var models []*model.Model
	for _, n := range list {
		models = append(models, n.model)
	}
	for _, m := range models {
		// the base of adapters
		if base := m.Base(); frozen && base != nil && !slices.Contains(models, base) {
			models = append(models, base)
		}
	}
	for _, m := range models {
		sum, err := weightSum(m, t.be)
		if err != nil {
			return err
		}
		sums = binary.LittleEndian.AppendUint32(sums, sum)
	}
	all, err := t.ranks.Gather("checksums of the weights", sums)
	if err != nil {
		return err
	}
	for r, other := range all {
		if string(other) != string(all[0]) {
			return fmt.Errorf("ranks: the weights of rank %d on %s are not those of rank 0 on %s (checksums %x and %x): nothing was saved: a processor or memory has erred: the same command resumes from the last checkpoint", r, t.ranks.Hosts()[r], t.ranks.Hosts()[0], other, all[0])
		}
	}
	return nil
}

// weightSum returns the CRC-32C checksum of the bits of m's weights.
func weightSum(m *model.Model, be model.Backend) (uint32, error) {
	sum, table := uint32(0), crc32.MakeTable(crc32.Castagnoli)
	part, raw := make([]float32, 1<<16), make([]byte, 0, 4<<16)
	for _, p := range m.Params() {
		for lo := 0; lo < p.Len(); lo += len(part) {
			x := part[:min(len(part), p.Len()-lo)]
			be.Download(x, p.W.Slice(lo, lo+len(x)))
			if err := be.Sync(); err != nil {
				return 0, fmt.Errorf("trainer: checksum of the weights: %w", err)
			}
			raw = raw[:0]
			for _, v := range x {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
			}
			sum = crc32.Update(sum, table, raw)
		}
	}
	return sum, nil
}

// wholeWeights completes this rank's float32 weights, where the ranks' devices gather only the
// weights in the precision that computes (trainer.shard_optimizer).
func (t *Trainer) wholeWeights() error {
	for _, n := range t.trainable() {
		if err := n.optim.WholeWeights(); err != nil {
			return err
		}
	}
	return nil
}
