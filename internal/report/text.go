package report

import (
	"fmt"
	"math"
	"time"
)

// Bytes returns a number of bytes for people, in powers of 1000: 659 B, 3.52 MB.
func Bytes(n int64) string {
	x := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB", "TB"} {
		if x < 999.5 {
			return fmt.Sprintf("%.3g %s", x, unit)
		}
		x /= 1000
	}
	return fmt.Sprintf("%.3g PB", x)
}

// Seconds returns a duration for people: 250 ms, 1.5 s, 2h3m0s.
func Seconds(s float64) string {
	switch {
	case s < 1:
		return fmt.Sprintf("%.0f ms", 1000*s)
	case s < 120:
		return fmt.Sprintf("%.1f s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// Magnitude returns a number for people, in powers of 1000: 950, 1.5M.
func Magnitude(n float64) string {
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		if math.Abs(n) < 999.5 {
			if unit == "" {
				return fmt.Sprintf("%.0f", n)
			}
			return fmt.Sprintf("%.3g%s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3gP", n)
}
