package main

import (
	"github.com/urfave/cli/v2"

	"gad/model"
	"gad/trainer/config"
)

// chunkFlags returns the flags about answers in chunks.
func chunkFlags() []cli.Flag {
	return []cli.Flag{
		withLimits(&cli.IntFlag{Name: "chunk", DefaultText: "that of the model's run",
			Usage: "answer in chunks, the first of so many tokens (doc/thought.md); 0: in one sequence"},
			intRange(0, 1<<20)),
		withLimits(&cli.IntFlag{Name: "carry", DefaultText: "half of --chunk",
			Usage: "tokens of an answer that stand in the context of its next chunk"},
			intRange(1, 1<<20)),
		withLimits(&cli.IntFlag{Name: "carry-head", Usage: "of these, how many are the answer's first"},
			intRange(0, 1<<20)),
		withLimits(&cli.IntFlag{Name: "chunks", Value: config.Default().Rollout.Chunks,
			Usage: "chunks of an answer at most"}, intRange(2, 1<<20)),
	}
}

// chunksOf returns the values of chunkFlags; nil if none is given.
func chunksOf(c *cli.Context) (*model.Chunks, error) {
	for _, name := range []string{"carry", "carry-head", "chunks"} {
		if c.IsSet(name) && c.Int("chunk") == 0 {
			return nil, usage("%s: --%s: needs --chunk C, the tokens of a chunk", commandName(c), name)
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
		return nil, usage("%s: --chunk %d: %v", commandName(c), chunks.Size, err)
	}
	return &chunks, nil
}
