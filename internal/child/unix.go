//go:build unix

package child

import (
	"context"
	"os/exec"
	"syscall"
)

// command is line for the shell, in a process group of its own: so that what the
// program starts can be ended with it, and so that Ctrl-C in a terminal reaches gad
// alone, which then decides.
func command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// kill ends the process group of cmd, which has been started.
func kill(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
