package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"gad/apps/collect"
	"gad/checkpoint"
	"gad/internal/report"
	"gad/internal/vfs"
)

// This file is what gad eval and gad generate share: an output file that is made while
// they work, and signals.

// claimOutput takes the lock of an output file, before the work and not after it. It
// refuses a file that is there, one that another process makes, and a place where none
// can be made.
func claimOutput(command, path string) (*checkpoint.Lock, error) {
	if info, err := files().Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return nil, usage("%s: %s: there is no folder %s: create it or give another --output", command, path, filepath.Dir(path))
	}
	lock, err := checkpoint.LockOutput(path)
	if err != nil {
		return nil, err
	}
	if err := absent(command, path); err != nil {
		return nil, cmp.Or(err, lock.Unlock())
	}
	return lock, nil
}

// absent refuses an output that is there.
func absent(command, path string) error {
	_, err := files().Stat(path)
	switch {
	case err == nil:
		if _, err := files().Stat(collect.JournalPath(path)); err == nil && command == collecting {
			return usage("%s: %s: exists: nothing is overwritten: remove it (its answers stay in %s) or give another --output", command, path, collect.JournalPath(path))
		}
		return usage("%s: %s: exists: nothing is overwritten: remove it or give another --output", command, path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return vfs.Target(fmt.Errorf("%s: %s: %w", command, path, err))
}

// collecting is the command whose output has a journal.
const collecting = "data collect"

// stoppable is interruptible for a command with its own words: first is printed at the
// first signal, second at the one that ends the process.
func (p *program) stoppable(con *report.Console, first string, second func() string) (context.Context, func()) {
	return p.interruptible(
		func(string) { con.Print(first) },
		func(string) { con.Close(); con.Print("stopped at once by a second signal: " + second()) })
}
