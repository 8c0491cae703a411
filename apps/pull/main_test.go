package pull

import (
	"os"
	"testing"
	"time"

	"gad/internal/hostile"
)

// patience ends what hangs.
const patience = 5 * time.Minute

func TestMain(m *testing.M) { os.Exit(hostile.Main(m)) }
