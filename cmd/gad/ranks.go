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

// rankCommands lists the commands that several processes run together.
var rankCommands = []string{"sft", "dpo", "opd", "warmup", "train", "resume", "bench"}

// ranksFlag returns the flag for the number of processes that train together.
func ranksFlag() cli.Flag {
	return withLimits(&cli.IntFlag{Name: "ranks", DefaultText: "what the launcher says", Usage: "processes that train together, started by mpirun, srun, torchrun or a Kubernetes job: refuse to run if the launcher says another number; 1: this process alone, whatever started it (doc/ranks.md)"}, powerOfTwo)
}

// connect connects this process with the ranks that its launcher started, and returns them; nil is
// this process alone. limit is the longest time that they wait for each other.
func (p *program) connect(c *cli.Context, limit time.Duration) (*trainer.Ranks, error) {
	want := c.Int("ranks")
	if want == 1 || p.jobs != nil { // the runs of a study are alone
		p.joined = true
		return nil, nil
	}
	l, err := comm.FindLaunch(os.LookupEnv)
	if err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	switch {
	case want == 0 && l.By == "" && os.Getenv(addrVar) != "": // or else each would train alone
		return nil, usage("%s: %s is set, but not RANK and WORLD_SIZE, which say which rank this is: set all three, or give --ranks 1", commandName(c), addrVar)
	case want == 0 && l.Size == 0 && os.Getenv(addrVar) != "":
		return nil, usage("%s: %s is set, but the launcher (%s) does not say how many ranks there are: give --ranks", commandName(c), addrVar, l.By)
	case want == 0 && l.Size <= 1:
		return nil, nil
	case l.By == "":
		return nil, usage("%s: --ranks %d: this process was started alone: start it with mpirun -n %[2]d, or by another launcher (doc/ranks.md)", commandName(c), want)
	case want > 0 && l.Size > 0 && l.Size != want:
		return nil, usage("%s: --ranks %d: %s has started %d: start as many, or leave --ranks out",
			commandName(c), want, l.By, l.Size)
	}
	size := max(l.Size, want)
	if size&(size-1) != 0 {
		return nil, usage("%s: %s has started %d ranks: there must be 2, 4 or another power of two",
			commandName(c), l.By, size)
	}
	if l.Rank >= size { // of a launcher that does not say how many there are
		return nil, usage("%s: --ranks %d: %s has started rank %d, and ranks count from 0: start as many, or correct --ranks", commandName(c), want, l.By, l.Rank)
	}
	p.localRank, p.joined = l.Local, true
	link, err := p.link(c, l, size, limit)
	if err != nil {
		return nil, err
	}
	if link.Size() != size || link.Rank() != l.Rank {
		return nil, fault.As(fault.ErrUsage, fmt.Errorf("ranks: %s says rank %d of %d, but MPI says %d of %d: the launcher and the MPI library are of different installations", l.By, l.Rank, size, link.Rank(), link.Size()))
	}
	return p.formGroup(link, limit, nil)
}

// formGroup returns the ranks that link connects. They must all be of one version, and none may
// have found a mistake, such as mistake here; otherwise rank 0 prints what is wrong, and all end
// with one status.
func (p *program) formGroup(link comm.Link, limit time.Duration,
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
		aborted := &comm.Aborted{Rank: r, Host: g.Hosts()[r]}
		switch {
		case his != version:
			aborted.Status, aborted.Reason =
				exitUsage,
				fmt.Sprintf(
					"ranks: rank %d on %s is gad %s, rank 0 on %s is gad %s: install the same one",
					r,
					aborted.Host, his, g.Hosts()[0], version)
		case mistaken && reason != "":
			aborted.Status, aborted.Reason = int(reason[0]), reason[1:]
		default:
			continue
		}
		if wrong != nil && wrong.Reason == aborted.Reason { // usually the same on all ranks
			continue
		}
		if wrong == nil {
			wrong = aborted
		}
		switch {
		case g.Rank() > 0:
		case r == 0:
			p.printError(errors.New(aborted.Reason))
		default:
			p.printError(aborted)
		}
	}
	if wrong == nil {
		return g, nil
	}
	p.reported = true
	_ = g.Close() // all wait here, so that no launcher ends rank 0 before it has printed
	return nil, wrong
}

// mistakeLimit is how long a rank that has found a mistake waits for the others, so that one of
// them prints it.
const mistakeLimit = 10 * time.Second

// reportOnce lets only rank 0 print a mistake found before the ranks connect, if mpirun has started
// them, since they share one console. Otherwise each prints it into its own log. It returns the
// error to end with.
func (p *program) reportOnce(mistake error) error {
	l, err := comm.FindLaunch(os.LookupEnv)
	if err != nil || p.joined || !p.ranks || !l.MPI || l.Size < 2 || os.Getenv(addrVar) != "" {
		return mistake
	}
	p.joined = true
	link, err := mpi.Open(l.ABI, mistakeLimit)
	if err != nil {
		return mistake
	}
	if link.Size()&(link.Size()-1) != 0 { // no group, which all ranks find
		p.reportFirst(link, mistake)
		return mistake
	}
	_, err = p.formGroup(link, mistakeLimit, mistake)
	if aborted := (*comm.Aborted)(nil); errors.As(err, &aborted) {
		return err
	}
	return mistake
}

// reportFirst lets rank 0 print a mistake that all ranks have found; the others return after it
// has.
func (p *program) reportFirst(link comm.Link, mistake error) {
	until := time.Now().Add(mistakeLimit)
	keepOn := func() error {
		if time.Now().After(until) {
			return comm.ErrRanks
		}
		return nil
	}
	peers := []int{0}
	if link.Rank() == 0 {
		p.printError(mistake)
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
	p.reported = true
}

// printError prints why the program ends. It leaves out ErrConfig's text, which the exit status
// expresses.
func (p *program) printError(err error) {
	p.console().Close()
	for line := range strings.Lines(strings.TrimSpace(err.Error())) {
		fmt.Fprintln(p.err, "gad: "+p.rank+strings.TrimPrefix(strings.TrimSuffix(line, "\n"),
			config.ErrConfig.Error()+": "))
	}
}

// reportedElsewhere reports whether rank 0, or another rank, prints why this rank ends.
func (p *program) reportedElsewhere(err error) bool {
	if p.rank == "" || p.reported {
		return p.reported
	}
	aborted := (*comm.Aborted)(nil)
	return errors.As(err, &aborted) || errors.Is(err, config.ErrConfig) ||
		errors.Is(err, trainer.ErrNumerical)
}
