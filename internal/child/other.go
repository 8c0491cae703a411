//go:build !unix

package child

import (
	"context"
	"os/exec"
)

// command returns line as a command of the shell of Windows.
func command(ctx context.Context, line string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", line)
}

// kill ends the shell, not the processes that the shell has started.
func kill(cmd *exec.Cmd) error { return cmd.Process.Kill() }
