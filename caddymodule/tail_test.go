package caddymodule

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/slotfleet/slotfleet/slotlog"
)

// lockedText is a text that several goroutines write.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A path that is wrong is told where an operator looks first, once, and that it is
// right again, too.
func TestLogThatIsNotThereIsToldOnce(t *testing.T) {
	there := filepath.Join(t.TempDir(), "there.log")
	openLog(t, there)
	var logs []namedLog
	for name, path := range map[string]string{"one": there, "two": there + "x"} {
		held, err := holdTail(slotlog.SourceOptions{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		held.start()
		logs = append(logs, namedLog{name: name, tail: held})
		defer dropTails([]*tail{held})
	}
	var out lockedText
	watch := func() *background {
		b := new(background)
		b.begin(func(ctx context.Context) { keepEye(ctx, slog.New(slog.NewTextHandler(&out, nil)), logs) })
		return b
	}
	b := watch()
	await(t, "a warning", func() bool { return strings.Contains(out.String(), "level=WARN") })
	b.stop()
	b = watch() // the next configuration
	openLog(t, there+"x")
	await(t, "the end of it", func() bool { return strings.Contains(out.String(), "level=INFO") })
	b.stop()
	if got := out.String(); strings.Count(got, "level=") != 2 || strings.Count(got, "source=two") != 2 {
		t.Errorf("got %s, want a warning of the second log and its end", got)
	}
}
