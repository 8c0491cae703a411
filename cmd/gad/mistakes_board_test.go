package main

import (
	"net"
	"os"
	"strconv"
	"testing"
)

// Mistakes with gad board and gad report.
func TestMistakesOfBoard(t *testing.T) {
	f, work := linked(t, "train", "sft", "student")
	if err := os.Mkdir("folder", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("mine.html", []byte("<!doctype html>"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	const way = ": give the --output of gad sft, warmup, train or dpo, or a folder of such runs"
	mistaken(t, []string{work, f.path("train"), f.path("sft")}, []mistake{
		{"board", 2, `board: the run is missing: gad board RUN, where RUN is the --output of gad sft, warmup, train or dpo`},
		{"report", 2, `report: the run is missing: gad report RUN, where RUN is the --output of gad sft, warmup, train or dpo`},
		{"board nowhere", 2, `board: nowhere: no such folder` + way},
		{"board student", 2, `board: student: contains no run` + way},
		{"board folder --json", 2, `board: folder: contains no run` + way},
		{"board mine.html", 2, `board: mine.html: is a file` + way},
		{"board train/global_step_3", 2, `board: train/global_step_3: is a checkpoint: give its run, train`},
		{"board train sft train", 2, `board: train: is given twice: give each run once`},
		{"board train --port 70000", 2, `board: --port 70000: must be from 0 to 65535`},
		{"board train --port -1", 2, `board: --port -1: must be from 0 to 65535`},
		{"board train --port " + taken, 2, `board: 127.0.0.1:` + taken + `: is in use: give another --port, or --port 0 for a free one`},
		{"board train --json --port 80", 2, `board: --port with --json: with --json nothing is served: leave out one of them`},
		{"board train --points 10", 2, `board: --points without --json: the page asks for what it shows: add --json, or leave it out`},
		{"board train --json --points -1", 2, `board: --points -1: must be at least 0`},
		{"board train --host 0.0.0.0", 2, `board: unknown flag --host: see gad board --help`},
		{"report train --samples -2", 2, `report: --samples -2: must be at least 0`},
		{"report train --output=", 2, `report: --output is empty: give the name of a file, such as report.html`},
		{"report train --output mine.html", 2, `board: mine.html: already exists, and is no report of gad: choose another file`},
		{"report train --output folder", 2, `board: folder: is a folder: give the name of a file`},
		{"report train --output none/r.html", 2, `board: none/r.html: there is no folder none: make it, or choose another file`},
		{"report train --output mine.html/r.html", 2, `board: mine.html/r.html: cannot be written: choose another path: stat mine.html/r.html: not a directory`},
		{"report nowhere --output r.html", 2, `board: nowhere: no such folder` + way},
	})
}
