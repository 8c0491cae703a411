//go:build nvidia

package cuda

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"gad/internal/compute/cuda/driver"
)

// TestFragments is the first test for a device that nobody has tried: the layout of
// each fragment, and what each wrapped instruction does, as the device has them. Where
// they differ from the tables, everything that it wrote is dumped.
func TestFragments(t *testing.T) {
	b := start(t, Options{})
	defer b.dev.Enter()()
	probe, err := b.dev.Kernel("probe")
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := b.dev.AllocPinned(4 * (probeWords + probeSize))
	if err != nil {
		t.Fatal(err)
	}
	defer b.dev.Unpin(pinned)
	place, err := b.allocate("probe", 4*(probeWords+probeSize))
	if err != nil {
		t.Fatal(err)
	}
	defer b.release(&place)
	host := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(pinned))), probeWords+probeSize)
	in, out := place.p, place.p+4*probeWords
	rng := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		p := newProbe(rng)
		copy(host, p.words())
		b.copyIn(in, unsafe.Pointer(&host[0]), 4*probeWords)
		b.launch(probe, grid{1, 1, 1, 32, probeShared}, at(out), at(in))
		if err := b.dev.CopyOut(unsafe.Pointer(&host[probeWords]), out, 4*probeSize); err != nil {
			t.Fatal(err)
		}
		if err := b.Sync(); err != nil {
			t.Fatal(err)
		}
		wrong := p.check(host[probeWords:])
		if len(wrong) == 0 {
			continue
		}
		t.Errorf("%s:\n%s", b.Name(), strings.Join(wrong, "\n"))
		for i := 0; i < probeSize; i += 32 {
			t.Logf("out[%d]: %08x", i, host[probeWords+i:probeWords+i+32])
		}
		break
	}
	if driver.Emulated() == nil {
		t.Logf("%s: fragments as in the tables", b.Name())
	}
}
