package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/internal/comm"
	"gad/internal/comm/mpi"
	"gad/internal/fault"
	"gad/trainer"
	"gad/trainer/config"
)

// withRanks are the commands that several processes run together.
var withRanks = []string{"sft", "dpo", "opd", "warmup", "train", "resume", "bench"}

// ranksFlag says by hand how many processes train together.
func ranksFlag() cli.Flag {
	return within(&cli.IntFlag{Name: "ranks", DefaultText: "what the launcher says", Usage: "processes that train together, started by mpirun, srun, torchrun or a Kubernetes job: refuse to run if the launcher says another number; 1: this process alone, whatever started it (doc/ranks.md)"}, powerOfTwo)
}

// connect is the ranks that this process trains with: those that its launcher says, or
// nil, which is this process alone. limit is how long they wait for each other.
func (p *program) connect(c *cli.Context, limit time.Duration) (*trainer.Ranks, error) {
	want := c.Int("ranks")
	if want == 1 || p.beside != nil { // the runs of a study are alone
		p.met = true
		return nil, nil
	}
	l, err := comm.FindLaunch(os.LookupEnv)
	if err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	switch {
	case want == 0 && l.By == "" && os.Getenv(addrVar) != "": // or else each would train alone
		return nil, usage("%s: %s is set, but not RANK and WORLD_SIZE, which say which rank this is: set all three, or give --ranks 1", typed(c), addrVar)
	case want == 0 && l.Size == 0 && os.Getenv(addrVar) != "":
		return nil, usage("%s: %s is set, but the launcher (%s) does not say how many ranks there are: give --ranks", typed(c), addrVar, l.By)
	case want == 0 && l.Size <= 1:
		return nil, nil
	case l.By == "":
		return nil, usage("%s: --ranks %d: this process was started alone: start it with mpirun -n %[2]d, or by another launcher (doc/ranks.md)", typed(c), want)
	case want > 0 && l.Size > 0 && l.Size != want:
		return nil, usage("%s: --ranks %d: %s has started %d: start as many, or leave --ranks out",
			typed(c), want, l.By, l.Size)
	}
	size := max(l.Size, want)
	if size&(size-1) != 0 {
		return nil, usage("%s: %s has started %d ranks: there must be 2, 4 or another power of two",
			typed(c), l.By, size)
	}
	if l.Rank >= size { // of a launcher that does not say how many there are
		return nil, usage("%s: --ranks %d: %s has started rank %d, and ranks count from 0: start as many, or correct --ranks", typed(c), want, l.By, l.Rank)
	}
	p.local, p.met = l.Local, true
	link, err := p.link(c, l, size, limit)
	if err != nil {
		return nil, err
	}
	if link.Size() != size || link.Rank() != l.Rank {
		return nil, fault.As(fault.ErrUsage, fmt.Errorf("ranks: %s says rank %d of %d, but MPI says %d of %d: the launcher and the MPI library are of different installations", l.By, l.Rank, size, link.Rank(), link.Size()))
	}
	return p.group(link, limit, nil)
}

// group is the ranks that link connects, if all are of one program and none has made a
// mistake, such as this one: else rank 0 says what is wrong, and all end with one status.
func (p *program) group(link comm.Link, limit time.Duration,
	mistake error) (*trainer.Ranks, error) {
	g, err := comm.New(link, limit)
	if err != nil {
		return nil, fault.As(fault.ErrRunning, err)
	}
	if r := g.Rank(); r > 0 {
		p.rank = fmt.Sprintf("rank %d on %s: ", r, g.Hosts()[r])
	}
	mine := versionText()
	if mistake != nil {
		mine += fmt.Sprintf("\x00%c%v", status(mistake), mistake)
	}
	all, err := g.Gather("programs", []byte(mine))
	if err != nil {
		return nil, fault.As(fault.ErrRunning, err)
	}
	var wrong *comm.Aborted
	version, _, _ := strings.Cut(string(all[0]), "\x00")
	for r, other := range all {
		his, reason, mistaken := strings.Cut(string(other), "\x00")
		said := &comm.Aborted{Rank: r, Host: g.Hosts()[r]}
		switch {
		case his != version:
			said.Status, said.Reason =
				exitUsage,
				fmt.Sprintf(
					"ranks: rank %d on %s is gad %s, rank 0 on %s is gad %s: install the same one",
					r,
					said.Host, his, g.Hosts()[0], version)
		case mistaken && reason != "":
			said.Status, said.Reason = int(reason[0]), reason[1:]
		default:
			continue
		}
		if wrong != nil && wrong.Reason == said.Reason { // the same everywhere, as a rule
			continue
		}
		if wrong == nil {
			wrong = said
		}
		switch {
		case g.Rank() > 0:
		case r == 0:
			p.complain(errors.New(said.Reason))
		default:
			p.complain(said)
		}
	}
	if wrong == nil {
		return g, nil
	}
	p.said = true
	_ = g.Close() // all wait here, so that no launcher ends rank 0 before it has spoken
	return nil, wrong
}

// mistakeLimit is how long a rank that has made a mistake waits for the others, to say it
// together.
const mistakeLimit = 10 * time.Second

// together has rank 0 alone say a mistake that was found before the ranks met. Those that
// mpirun has started have one console; where a launcher gives each its own log, each says it.
func (p *program) together(mistake error) error {
	l, err := comm.FindLaunch(os.LookupEnv)
	if err != nil || p.met || !p.ranks || !l.MPI || l.Size < 2 || os.Getenv(addrVar) != "" {
		return mistake
	}
	p.met = true
	link, err := mpi.Open(l.ABI, mistakeLimit)
	if err != nil {
		return mistake
	}
	if link.Size()&(link.Size()-1) != 0 { // no group, which is the mistake of all of them
		p.saidFirst(link, mistake)
		return mistake
	}
	_, err = p.group(link, mistakeLimit, mistake)
	if told := (*comm.Aborted)(nil); errors.As(err, &told) {
		return err
	}
	return mistake
}

// saidFirst has rank 0 say a mistake of all ranks; the others end after it.
func (p *program) saidFirst(link comm.Link, mistake error) {
	until := time.Now().Add(mistakeLimit)
	keepOn := func() error {
		if time.Now().After(until) {
			return comm.ErrRanks
		}
		return nil
	}
	peers := []int{0}
	if link.Rank() == 0 {
		p.complain(mistake)
		peers = nil
		for r := 1; r < link.Size(); r++ {
			peers = append(peers, r)
		}
	}
	var err error
	for _, r := range peers {
		err = errors.Join(err, link.Exchange(r, []byte{1}, make([]byte, 1), keepOn))
	}
	_ = link.Close(err == nil)
	p.said = true
}

// complain says why the program ends. That a mistake is one of configuration is what its exit
// status says.
func (p *program) complain(err error) {
	p.console().Close()
	for line := range strings.Lines(strings.TrimSpace(err.Error())) {
		fmt.Fprintln(p.err, "gad: "+p.rank+strings.TrimPrefix(strings.TrimSuffix(line, "\n"),
			config.ErrConfig.Error()+": "))
	}
}

// silent reports whether rank 0, or another, says why this rank ends.
func (p *program) silent(err error) bool {
	if p.rank == "" || p.said {
		return p.said
	}
	told := (*comm.Aborted)(nil)
	return errors.As(err, &told) || errors.Is(err, config.ErrConfig) ||
		errors.Is(err, trainer.ErrNumerical)
}
