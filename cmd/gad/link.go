package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gad/device"
	"gad/internal/comm"
	"gad/internal/comm/mpi"
	"gad/internal/comm/tcp"
	"gad/internal/fault"
)

// The environment variables of ranks that connect by TCP.
const (
	secretVar     = "GAD_RANKS_SECRET"
	secretFileVar = "GAD_RANKS_SECRET_FILE"
	addrVar       = "GAD_RANKS_ADDR"
)

// link connects this process, rank l.Rank, with the other ranks: by MPI if the launcher has
// prepared it, otherwise by TCP at the address of rank 0 that the launcher or the user gives.
func (p *program) link(c *cli.Context, l comm.Launch, size int,
	limit time.Duration) (comm.Link, error) {
	addr := os.Getenv(addrVar)
	switch {
	case addr != "":
		if colon := strings.LastIndex(addr, ":"); colon < 1 || !isPort(addr[colon+1:]) {
			return nil, usage("%s: %s is %q: must be host:port of rank 0, such as node0:29600",
				commandName(c), addrVar, addr)
		}
	case l.MPI:
		link, err := mpi.Open(l.ABI, limit)
		if err != nil && !mpi.Built {
			return nil, fault.As(fault.ErrUsage, err)
		}
		if err != nil {
			return nil, fault.As(fault.ErrRunning, err)
		}
		return link, nil
	case l.Addr != "":
		var err error
		if addr, err = tcp.RanksAddr(l.Addr); err != nil {
			return nil,
				usage("%s: %s has set the address of rank 0 to %q: %v: set %s to its host:port",
					commandName(c), l.By, l.Addr, err, addrVar)
		}
	default:
		return nil, usage("%s: %s has started rank %d of %d, with neither MPI nor an address of rank 0: set %s to host:port of rank 0 (doc/ranks.md), or give --ranks 1", commandName(c), l.By, l.Rank, size, addrVar)
	}
	secret, err := rankSecret()
	if err != nil {
		return nil, fault.As(fault.ErrUsage, err)
	}
	if secret == nil {
		return nil, usage("%s: %s has started rank %d of %d without MPI, so they connect by TCP: set %s to the same random text on all ranks, or %s to a file with it (doc/ranks.md), or give --ranks 1", commandName(c), l.By, l.Rank, size, secretVar, secretFileVar)
	}
	if len(secret) < tcp.LeastSecret {
		return nil, usage("ranks: the secret of %s or %s has %d bytes: must have at least %d: such as the output of: openssl rand -hex 16", secretVar, secretFileVar, len(secret), tcp.LeastSecret)
	}
	// Silence for as long as half an hour looks like a fault.
	slow := time.AfterFunc(5*time.Second, func() {
		fmt.Fprintf(p.err, "gad: ranks: rank %d of %d has not met all others yet; rank 0 is at %s; waiting up to %v (trainer.rank_timeout)\n", l.Rank, size, addr, limit)
	})
	defer slow.Stop()
	link, err := tcp.Open(tcp.Config{Rank: l.Rank, Size: size, Addr: addr, Secret: secret,
		Limit: limit, Rejected: func(who string) {
			fmt.Fprintf(p.err, "gad: ranks: rank %d of %d has sent away %s\n", l.Rank, size, who)
		}})
	if err != nil {
		return nil, fault.As(fault.ErrRunning, err)
	}
	return link, nil
}

// rankSecret returns the secret that the ranks of this run share; nil if none is set.
func rankSecret() ([]byte, error) {
	// trimmed like a file's text, from which it may come
	if text := strings.TrimSpace(os.Getenv(secretVar)); text != "" {
		os.Unsetenv(secretVar) // a checker need not know it
		return []byte(text), nil
	}
	name := os.Getenv(secretFileVar)
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Errorf("ranks: %s: %s: %w", secretFileVar, name, err)
	}
	return append([]byte{}, bytes.TrimSpace(text)...), nil
}

// rankDevice returns d for this rank: the GPU of its number on this machine, unless only one GPU is
// visible to it.
func (p *program) rankDevice(d device.Options) device.Options {
	if shown, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok && !strings.Contains(shown, ",") {
		return d
	}
	d.Index = p.localRank
	return d
}
