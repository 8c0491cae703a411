package bench

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"gad/internal/compute"
	estimate "gad/internal/compute/cost"
	"gad/model"
)

// Predict returns the report of Run for a card that this machine may lack, by package cost, with
// the launches of each operation. Limits are the card's peaks, so a share of products is the model
// FLOPs utilisation.
func Predict(o Options, card estimate.Card) (*Report, error) {
	if err := Check(o.What); err != nil {
		return nil, err
	}
	wanted := func(part string) bool { return len(o.What) == 0 || slices.Contains(o.What, part) }
	limits := Limits{Products: card.FLOPS, Copy: card.Bytes}
	r := &Report{Device: estimate.New(card).Name(), Go: runtime.Version(),
		Threads: runtime.GOMAXPROCS(0), Shape: o.Name,
		Parameters: o.Config.ParamCount(model.LM), Rank: o.Load.Rank, Limits: limits, Card: &card}
	if wanted("ops") {
		be := estimate.New(card)
		trials, last := trialsOf(be, o.Config, o.Load)
		for _, t := range trials {
			b := &operands{be: be}
			call := t.set(b)
			if b.err != nil {
				return nil, fmt.Errorf("bench: %s %s: %w", t.name, t.size, b.err)
			}
			const calls = 32 // queued one after the other, as in a measurement
			call()
			be.Sync()
			before := be.Elapsed()
			for range calls {
				call()
			}
			be.Sync()
			seconds := (be.Elapsed() - before) / calls
			b.free()
			r.Ops = append(r.Ops, Op{Name: t.name, Size: t.size,
				Stat: Stat{Runs: calls, Seconds: seconds, Best: seconds},
				Use:  limits.use(*last, seconds)})
		}
	}
	if wanted("stages") {
		var err error
		if r.Stages, err = predictStages(estimate.New(card), limits, o.Config, o.Load); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	r.relate()
	return r, nil
}

// predictStages predicts each stage: runs it until its graphs are captured, then once.
func predictStages(be *estimate.Backend, l Limits, c model.Config, load Load) ([]Stage, error) {
	load = load.resolved(be, c)
	sft, gen, gad := stagesOf(be, c, load)
	g, err := newGame(be, c, load)
	if err != nil {
		return nil, err
	}
	once := func(s *Stage, w work, run func() error) error {
		be.Take()
		graphs := be.Graphs()
		before := be.Elapsed()
		if err := run(); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		seconds := be.Elapsed() - before
		uses, waited := be.Take()
		s.Stat = Stat{Runs: 1, Seconds: seconds, Best: seconds}
		if room := be.Card().Memory - be.Overhead(); s.Planned > room {
			s.Unfit = fmt.Sprintf("does not fit: needs %.1f GB of %.1f GB", float64(s.Planned)/1e9,
				float64(room)/1e9)
		}
		_, s.Peak = be.Memory()
		s.count(l, w)
		for _, u := range uses {
			s.Ops = append(s.Ops, Used{Name: u.Op, Calls: u.Calls, Launches: u.Launches,
				Seconds: u.Seconds, Part: u.Seconds / seconds,
				Use: l.use(compute.Cost{FLOPs: u.FLOPs, Bytes: u.Bytes}, u.Seconds)})
		}
		s.Ops = append(s.Ops, Used{Name: "waiting for the host", Seconds: waited,
			Part: waited / seconds})
		now := be.Graphs()
		s.Steps = &estimate.Graphs{Eager: now.Eager - graphs.Eager,
			Captured: now.Captured - graphs.Captured, Replayed: now.Replayed - graphs.Replayed}
		return nil
	}
	err = func() error {
		if err := once(&sft, g.pass(load.lora().TrainPasses(), load.Seqs, load.Length,
			load.Seqs*(load.Length-1)), g.sftStep); err != nil {
			return err
		}
		for range 2 { // the first captures graphs
			gen.Ops = nil
			if err := once(&gen, g.sampling(load.Samples, 1), g.generate); err != nil {
				return err
			}
		}
		if err := g.complete(); err != nil {
			return err
		}
		works, all := g.works()
		return once(&gad, all, func() error {
			began := be.Elapsed()
			return g.gadStep(func(name string, _ float64) {
				now := be.Elapsed()
				part := Stage{Name: name,
					Stat: Stat{Runs: 1, Seconds: now - began, Best: now - began}}
				part.count(l, works[name])
				gad.Parts = append(gad.Parts, part)
				began = now
			})
		})
	}()
	if err := errors.Join(err, g.close()); err != nil {
		return nil, err
	}
	return []Stage{sft, gen, gad}, nil
}
