package algos

import (
	"os"
	"testing"

	"gad/internal/hostile"
)

func TestMain(m *testing.M) { os.Exit(hostile.Main(m)) }
