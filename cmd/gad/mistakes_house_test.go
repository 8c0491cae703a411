package main

import "testing"

// Mistakes with the commands about gad itself, and with the device.
func TestMistakesOfTheHouse(t *testing.T) {
	work := t.TempDir()
	t.Chdir(work)
	mistaken(t, []string{work}, []mistake{
		{"completion", 2, `completion: a subcommand is missing: use bash, zsh or fish (see gad completion --help)`},
		{"completion powershell", 2, `completion: unknown subcommand "powershell": use bash, zsh or fish (see gad completion --help)`},
		{"completion bas", 2, `unknown command "completion bas": did you mean gad completion bash?`},
		{"completion bash more", 2, `completion bash: unexpected argument "more": this command takes flags only`},
		{"man sft", 2, `man: unexpected argument "sft": this command takes flags only`},
		{"bench --threads -1", 2, `device: -1 threads: use 0 for one per core, or more`},
		{"bench --device gpu", 2, `device: "gpu": use cpu or cuda`},
		{"bench --precision fp32", 2, `device: precision "fp32": use auto, bf16 or f32`},
		{"--versoin", 2, `unknown flag --versoin: did you mean --version?`},
		{"--device cuda", 2, `unknown flag --device: flags come after a command: see gad --help`},
		{"--model=x sft", 2, `unknown flag --model: flags come after a command: see gad --help`},
		{"version", 2, `unknown command "version": did you mean gad --version?`},
	})
}
