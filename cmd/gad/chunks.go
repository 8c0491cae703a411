package main

import (
	"github.com/urfave/cli/v2"

	"gad/model"
	"gad/trainer/config"
)

// chunkFlags say how answers are written in chunks.
func chunkFlags() []cli.Flag {
	return []cli.Flag{
		within(&cli.IntFlag{Name: "chunk", DefaultText: "that of the model's run",
			Usage: "answer in chunks, the first of so many tokens (doc/thought.md); 0: in one sequence"},
			count(0, 1<<20)),
		within(&cli.IntFlag{Name: "carry", DefaultText: "half of --chunk",
			Usage: "tokens of an answer that stand in the context of its next chunk"},
			count(1, 1<<20)),
		within(&cli.IntFlag{Name: "carry-head", Usage: "of these, how many are the answer's first"},
			count(0, 1<<20)),
		within(&cli.IntFlag{Name: "chunks", Value: config.Default().Rollout.Chunks,
			Usage: "chunks of an answer at most"}, count(2, 1<<20)),
	}
}

// chunksOf are the flags of chunkFlags; nil where none is given.
func chunksOf(c *cli.Context) (*model.Chunks, error) {
	for _, name := range []string{"carry", "carry-head", "chunks"} {
		if c.IsSet(name) && c.Int("chunk") == 0 {
			return nil, usage("%s: --%s: needs --chunk C, the tokens of a chunk", typed(c), name)
		}
	}
	if !c.IsSet("chunk") {
		return nil, nil
	}
	var s config.Config
	s.Rollout.Chunk, s.Rollout.Carry, s.Rollout.CarryHead, s.Rollout.Chunks =
		c.Int("chunk"), c.Int("carry"), c.Int("carry-head"), c.Int("chunks")
	chunks := s.Rollout.Thought()
	if err := chunks.Check(); err != nil {
		return nil, usage("%s: --chunk %d: %v", typed(c), chunks.Size, err)
	}
	return &chunks, nil
}
