package pull

import (
	"fmt"
	"io"

	"gad/internal/report"
)

// Print writes the list of files, and the bytes that would be fetched into cache.
func (p *Pull) Print(w io.Writer, cache string) error {
	width := 0
	for _, i := range p.Items {
		width = max(width, len(i.Path))
	}
	for _, i := range p.Items {
		state := ""
		switch {
		case i.Whole:
			state = "  in the cache"
		case i.Have > 0:
			state = fmt.Sprintf("  %s in the cache", Bytes(i.Have))
		}
		fmt.Fprintf(w, "%-*s  %9s%s\n", width, i.Path, Bytes(i.Size), state)
	}
	free, err := p.Free()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s, %s; to fetch: %s; free in %s: %s\n", report.Count(len(p.Items), "file"),
		Bytes(p.Size()), Bytes(p.Missing()), cache, Bytes(free))
	return nil
}

// Bytes returns a number of bytes for people: 659 B, 3.5 MB.
func Bytes(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n), 0
	for x >= 999.5 && unit < 5 {
		x, unit = x/1000, unit+1
	}
	if x < 9.95 {
		return fmt.Sprintf("%.1f %cB", x, " kMGTP"[unit])
	}
	return fmt.Sprintf("%.0f %cB", x, " kMGTP"[unit])
}
