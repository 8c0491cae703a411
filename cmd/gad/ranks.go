package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"gad/internal/comm"
	"gad/trainer"
)

// ranksFlag says by hand how many processes train together.
func ranksFlag() cli.Flag {
	return &cli.IntFlag{Name: "ranks", DefaultText: "what the launcher says", Usage: "processes that train together, started by mpirun: refuse to run if there are others; 1: this process alone, whatever started it (doc/ranks.md)"}
}

// connect is the ranks that this process trains with: those that its launcher says, or
// nil, which is this process alone. limit is how long they wait for each other.
func (p *program) connect(c *cli.Context, limit time.Duration) (*trainer.Ranks, error) {
	want := c.Int("ranks")
	if c.IsSet("ranks") && (want < 1 || want&(want-1) != 0) {
		return nil, usage("%s: --ranks %d: must be 1, 2, 4 or another power of two", typed(c), want)
	}
	if want == 1 || p.beside != nil { // the runs of a study are alone
		return nil, nil
	}
	l, err := comm.Launched(os.LookupEnv)
	if err != nil {
		return nil, marked{errUsage, err}
	}
	switch {
	case want == 0 && l.Size <= 1:
		return nil, nil
	case l.By == "":
		return nil, usage("%s: --ranks %d: this process was started alone: start it with mpirun -n %[2]d", typed(c), want)
	case want > 0 && l.Size > 0 && l.Size != want:
		return nil, usage("%s: --ranks %d: %s has started %d: start as many, or leave --ranks out", typed(c), want, l.By, l.Size)
	}
	size := max(l.Size, want)
	if size&(size-1) != 0 {
		return nil, usage("%s: %s has started %d ranks: there must be 2, 4 or another power of two", typed(c), l.By, size)
	}
	p.local = l.Local
	link, err := p.link(c, l, size, limit)
	if err != nil {
		return nil, err
	}
	if link.Size() != size || link.Rank() != l.Rank {
		return nil, marked{errUsage, fmt.Errorf("ranks: %s says rank %d of %d, but MPI says %d of %d: the launcher and the MPI library are of different installations", l.By, l.Rank, size, link.Rank(), link.Size())}
	}
	g, err := comm.New(link, limit)
	if err != nil {
		return nil, marked{errRunning, err}
	}
	if r := g.Rank(); r > 0 {
		p.rank = fmt.Sprintf("rank %d on %s: ", r, g.Hosts()[r])
	}
	programs, err := g.Gather("programs", []byte(versionText()))
	if err != nil {
		return nil, marked{errRunning, err}
	}
	for r, other := range programs {
		if string(other) != string(programs[0]) {
			return nil, fmt.Errorf("%w: ranks: rank %d on %s is gad %s, rank 0 on %s is gad %s: install the same one", trainer.ErrConfig, r, g.Hosts()[r], other, g.Hosts()[0], programs[0])
		}
	}
	return g, nil
}

// silent reports whether rank 0, or another, says why this rank ends.
func (p *program) silent(err error) bool {
	if p.rank == "" {
		return false
	}
	told := (*comm.Aborted)(nil)
	return errors.As(err, &told) || errors.Is(err, trainer.ErrConfig) || errors.Is(err, trainer.ErrNumerical)
}
