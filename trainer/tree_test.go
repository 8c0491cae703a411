package trainer

import (
	"fmt"
)

// branching are a small run's settings with so many trees that branch in so many rounds.
func branching(trees, rounds int, more ...string) []string {
	return append([]string{"rollout.n=1", fmt.Sprint("rollout.tree.trees=", trees),
		fmt.Sprint("rollout.tree.rounds=", rounds), "rollout.tree.segment=2",
		"critic.truncated=include"}, more...)
}
