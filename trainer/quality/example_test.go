package quality_test

import (
	"fmt"

	"gad/trainer/quality"
)

// Whether a reward puts answers in the order of their truth.
func ExampleSpearman() {
	truth, reward := []float64{0.1, 0.4, 0.4, 0.9}, []float64{-3, 1, 2, 8}
	fmt.Printf("%.3f\n", quality.Spearman(reward, truth))
	// Output:
	// 0.949
}
