package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Mistakes with ranks that connect by TCP.
func TestMistakesOfTCP(t *testing.T) {
	f, work := linked(t, "test.jsonl=rows.jsonl", "student")
	if err := os.WriteFile(filepath.Join(work, "short"), []byte(" secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const sft = "sft --model student --data rows.jsonl --output run SET "
	names := []string{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", addrVar, secretVar, secretFileVar}
	for _, c := range []struct {
		env  map[string]string
		rows []mistake
	}{
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", secretVar: "secret"}, []mistake{
			{sft, 2, `ranks: the secret of GAD_RANKS_SECRET or GAD_RANKS_SECRET_FILE has 6 bytes: must have at least 16: such as the output of: openssl rand -hex 16`},
		}},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", secretFileVar: "short"}, []mistake{
			{sft, 2, `ranks: the secret of GAD_RANKS_SECRET or GAD_RANKS_SECRET_FILE has 6 bytes: must have at least 16: such as the output of: openssl rand -hex 16`},
		}},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", secretFileVar: "absent"}, []mistake{
			{sft, 2, `ranks: GAD_RANKS_SECRET_FILE: absent: no such file or directory`},
		}},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "http", secretVar: "0123456789abcdef"}, []mistake{
			{sft, 2, `sft: torchrun has set the address of rank 0 to "node0:http": port "http": must be 1 to 65534: set GAD_RANKS_ADDR to its host:port`},
		}},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", addrVar: "node0", secretVar: "0123456789abcdef"}, []mistake{
			{sft, 2, `sft: GAD_RANKS_ADDR is "node0": must be host:port of rank 0, such as node0:29600`},
		}},
		{map[string]string{"JOB_COMPLETION_INDEX": "1"}, []mistake{
			{sft + "--ranks 2", 2, `sft: Indexed Job has started rank 1 of 2, with neither MPI nor an address of rank 0: set GAD_RANKS_ADDR to host:port of rank 0 (doc/ranks.md), or give --ranks 1`},
		}},
	} {
		for _, name := range names {
			t.Setenv(name, "") // to be as it was afterwards
			os.Unsetenv(name)
		}
		for name, value := range c.env {
			t.Setenv(name, value)
		}
		mistaken(t, []string{work, f.path("test.jsonl")}, c.rows)
	}
}
