package slotlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

const (
	// firstPause is how long after its end a stream is opened again, doubling up to
	// maxPause while it ends within maxPause.
	firstPause = time.Second
	maxPause   = 10 * time.Second
)

// errEnded: nothing more will come, and there is nothing to open again.
var errEnded = errors.New("it ended")

// stream follows a log that can only be read as it comes: what nobody reads is gone,
// and where it breaks lines are missing.
type stream struct {
	to   streamSink
	stop <-chan struct{}
	name string

	// open begins to read. Close of what it returns has a Read return.
	open func() (streamReader, error)
}

type streamReader interface {
	io.ReadCloser

	// check says why the stream is not the one any more that was to be read.
	check() error
}

type streamSink interface {
	sink
	restarted()
}

func newStream(o SourceOptions, to streamSink, stop <-chan struct{}) *stream {
	s := &stream{to: to, stop: stop, name: o.String()}
	switch argv, both := o.program(); {
	case argv != nil:
		s.open = func() (streamReader, error) { return startProgram(argv, both) }
	case o.Kind == SourceFIFO:
		s.open = func() (streamReader, error) { return openFIFO(o.Path) }
	default:
		s.open = stdin.open
	}
	return s
}

// run reads until stopped. A stream that ended is opened again after a while.
func (s *stream) run() {
	pause := firstPause
	for {
		began := time.Now()
		err := s.read()
		if err == nil {
			return
		}
		state := FileEnded
		if errors.Is(err, fs.ErrNotExist) {
			state = FileMissing
		}
		s.to.status(state, fmt.Errorf("reading %s: %w", s.name, err), 0, time.Time{})
		if errors.Is(err, errEnded) {
			return
		}
		if time.Since(began) > maxPause {
			pause = firstPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-s.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, maxPause)
		s.to.restarted()
	}
}

// read opens the stream and reads to its end, which is an error; nil: it was stopped.
func (s *stream) read() error {
	in, err := s.open()
	if err != nil {
		return err
	}
	s.to.status(FileOpen, nil, 0, time.Now())
	ended := make(chan error, 1)
	go func() {
		ended <- s.copy(in)
		close(ended)
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for err == nil {
		select {
		case <-s.stop:
			_ = in.Close()
			drained(ended)
			return nil
		case err = <-ended:
			_ = in.Close()
		case <-tick.C:
			if err = in.check(); err != nil {
				_ = in.Close()
				drained(ended)
			} else {
				s.to.status(FileOpen, nil, 0, time.Now())
			}
		}
	}
	s.to.cut(false, true)
	return err
}

// drained waits for the end of what was closed. That it was closed is no error.
func drained(ended <-chan error) {
	for range ended {
	}
}

// copy feeds what comes until it ends.
func (s *stream) copy(in io.Reader) error {
	buf := make([]byte, chunkBytes)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			s.to.feed(buf[:n], time.Now(), false)
		}
		if err != nil {
			return err
		}
	}
}
