package slotlog

import (
	"io"
	"os"
	"sync"
)

// stdin is the standard input of this process.
var stdin = &input{from: os.Stdin}

// input hands one stream that cannot be opened twice, nor left in the middle of a
// Read, to one reader after the other. Its goroutine runs from the first use to the
// end of the stream, and drops what comes while nobody reads.
type input struct {
	from io.Reader

	mu    sync.Mutex
	begun bool
	to    *io.PipeWriter // nil: nobody reads
	ended bool
}

// open makes a reader of what comes from now on, in place of the one before.
func (i *input) open() (streamReader, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return nil, errEnded
	}
	r, w := io.Pipe()
	if i.to != nil {
		_ = i.to.CloseWithError(errEnded)
	}
	i.to = w
	if !i.begun {
		i.begun = true
		go i.hand()
	}
	return inputReader{r}, nil
}

func (i *input) hand() {
	buf := make([]byte, chunkBytes)
	for {
		n, err := i.from.Read(buf)
		i.mu.Lock()
		to := i.to
		i.ended = err != nil
		i.mu.Unlock()
		if to != nil && n > 0 {
			_, _ = to.Write(buf[:n]) // fails when its reader left
		}
		if err != nil {
			if to != nil {
				_ = to.CloseWithError(errEnded)
			}
			return
		}
	}
}

type inputReader struct{ *io.PipeReader }

func (inputReader) check() error { return nil }
