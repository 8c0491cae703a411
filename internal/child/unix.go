//go:build unix

package child

import (
	"context"
	"os/exec"
	"syscall"
)

// command returns line as a command of the shell in a process group of its own. The whole group can
// then be killed, and Ctrl-C in a terminal reaches gad alone, which decides what to end.
func command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// kill sends SIGKILL to the process group of cmd, which must have been started.
func kill(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
