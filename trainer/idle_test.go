package trainer

import (
	"slices"
	"strings"
	"testing"

	"gad/trainer/config"
)

// With min_spread a group whose rewards hardly differ is dropped too: those of a
// discriminator are never quite equal.
func TestMinSpread(t *testing.T) {
	rewards, group := []float64{1, 1, 2, 2.05, 3, 4}, []int{0, 0, 1, 1, 2, 2}
	for least, want := range map[float64][]int{0: {1, 2}, 0.1: {2}, 1: nil} {
		if got, err := spreadGroups(rewards, group, 3, least); err != nil ||
			!slices.Equal(got, want) {
			t.Errorf("min_spread %g: groups %v, %v, want %v", least, got, err, want)
		}
	}
	c := config.StageDefaults(config.Train)
	c.Algorithm.FilterGroups.MinSpread = 0.1
	if err := c.Validate(config.Train); err == nil ||
		!strings.Contains(err.Error(),
			"algorithm.filter_groups.min_spread 0.1 needs algorithm.filter_groups.enable=true") {
		t.Error(err)
	}
}
