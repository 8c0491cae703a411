//go:build !unix

package child

import (
	"context"
	"os/exec"
)

// command is line for the shell of Windows.
func command(ctx context.Context, line string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", line)
}

// kill ends the shell; what that started, it cannot reach.
func kill(cmd *exec.Cmd) error { return cmd.Process.Kill() }
