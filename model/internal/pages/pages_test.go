package pages

import "testing"

// A sample's own pages are those that its tokens write to behind the prompt's full pages; the last
// token's keys and values are not written.
func TestOwn(t *testing.T) {
	for pt := 1; pt <= 5; pt++ {
		for prompt := 1; prompt <= 12; prompt++ {
			for tokens := range 12 {
				written := map[int]bool{}
				for at := prompt / pt * pt; at < prompt+tokens-1 && tokens > 0; at++ {
					written[at/pt] = true
				}
				if got := Own(prompt, tokens, pt); got != len(written) {
					t.Fatalf("pages of %d, prompt of %d, %d new tokens: %d, want %d", pt, prompt, tokens,
						got, len(written))
				}
			}
		}
	}
}

// Rows are rounded up to a multiple, and those beyond have pages to write to.
func TestDecodeRows(t *testing.T) {
	for multiple := 1; multiple <= 9; multiple++ {
		for n := 1; n <= 30; n++ {
			rows := DecodeRows(multiple, n)
			if rows < n || rows >= n+multiple || rows%multiple != 0 {
				t.Fatalf("%d rows of %d samples, multiple %d", rows, n, multiple)
			}
			if Spare(multiple, 4)*4 < rows-n {
				t.Fatalf("%d rows to spare in %d pages of 4", rows-n, Spare(multiple, 4))
			}
		}
	}
}

// A pool has room for full slots: their own pages, and the prompts that they belong to.
func TestPool(t *testing.T) {
	for slots := 1; slots <= 9; slots++ {
		for n := 1; n <= 4; n++ {
			for prompts := 1; prompts <= 6; prompts++ {
				at := min(slots, n*prompts)
				least := at*2 + Count(at, n)*3 // each with 2 pages, prompts with 3
				if got := Pool(at, n, prompts, 3, 2); got < least || got > at*2+prompts*3 {
					t.Fatalf("%d slots, %d prompts of %d samples: %d pages, at least %d", at, prompts, n,
						got, least)
				}
			}
		}
	}
	if got := OfChunks(3, 17, 4); got != 3*6 {
		t.Errorf("chunks of 17 tokens in 3 slots: %d pages", got)
	}
}
