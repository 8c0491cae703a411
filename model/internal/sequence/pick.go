package sequence

// Pick returns the elements of xs at the given indices, in the order of the indices.
func Pick[T any](xs []T, indices []int) []T {
	out := make([]T, len(indices))
	for i, j := range indices {
		out[i] = xs[j]
	}
	return out
}
