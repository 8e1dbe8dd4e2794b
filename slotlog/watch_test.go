package slotlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// slow is a watcher whose looks without an event come too late for any test.
func slow() *watcher { return &watcher{every: time.Hour, make: fsnotify.NewWatcher} }

func inotifyInstances(t *testing.T) int {
	n := 0
	for _, to := range descriptors(t) {
		if strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

func TestAllSourcesShareOneWatcher(t *testing.T) {
	before := inotifyInstances(t)
	dir := t.TempDir()
	var all []*Source
	for i := range 20 {
		path := filepath.Join(dir, fmt.Sprint(i), "s.log")
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, launchLine(1))
		s := Open(SourceOptions{Path: path})
		awaitRead(t, s)
		all = append(all, s)
	}
	if got := inotifyInstances(t); got != before+1 {
		t.Errorf("inotify instances of 20 sources: got %d, want 1", got-before)
	}
	for _, s := range all {
		s.Close()
	}
	if got := inotifyInstances(t); got != before {
		t.Errorf("inotify instances after all were closed: got %d, want none", got-before)
	}
	if shared.run != nil {
		t.Error("the watcher runs though nobody uses it")
	}
}

func TestLostEventsAreCountedAndLookedFor(t *testing.T) {
	var events *fsnotify.Watcher
	w := slow()
	w.make = func() (*fsnotify.Watcher, error) {
		// One that tells nothing but what the test says.
		var err error
		if events, err = fsnotify.NewWatcher(); err != nil {
			return nil, err
		}
		err = events.Close()
		events.Events, events.Errors = make(chan fsnotify.Event), make(chan error)
		return events, err
	}
	dir := t.TempDir()
	var all []*Source
	for i := range 3 {
		path := filepath.Join(dir, fmt.Sprint(i, ".log"))
		write(t, path, launchLine(1))
		s := followWith(t, SourceOptions{Path: path}, w)
		awaitTask(t, s, 1)
		appendTo(t, path, launchLine(2))
		all = append(all, s)
	}
	events.Errors <- fsnotify.ErrEventOverflow
	for i, s := range all {
		awaitTask(t, s, 2)
		await(t, s, "the loss counted", func(n Snapshot) bool { return n.Overflows == 1 })
		appendTo(t, filepath.Join(dir, fmt.Sprint(i, ".log")), launchLine(3))
	}
	events.Errors <- errors.New("something else")
	for _, s := range all {
		awaitTask(t, s, 3)
	}
}

func TestWithoutAWatchTheFileIsLookedAtAndThatIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	write(t, path, launchLine(1))
	s := followWith(t, SourceOptions{Path: path}, eventless(time.Millisecond))
	awaitTask(t, s, 1)
	appendTo(t, path, launchLine(2))
	awaitTask(t, s, 2)
	snap := await(t, s, "why there are no events", func(n Snapshot) bool { return n.NoEvents != "" })
	if !strings.Contains(snap.NoEvents, "none left") || snap.Degraded {
		t.Errorf("no events, degraded: got %q, %v, want the reason, false", snap.NoEvents, snap.Degraded)
	}
}

func TestLinkIsFollowedAndItsNewTargetNoticedAtOnce(t *testing.T) {
	dir := t.TempDir()
	target := func(n int) string { return filepath.Join(dir, fmt.Sprint("day", n), "server.log") }
	for n := range 3 {
		if err := os.Mkdir(filepath.Dir(target(n)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "current.log")
	relink := func(n int) {
		if err := os.Symlink(target(n), link+".new"); err != nil {
			t.Fatal(err)
		}
		rename(t, link+".new", link)
	}
	write(t, target(0), launchLine(0))
	relink(0)
	s := followWith(t, SourceOptions{Path: link}, slow())
	awaitTask(t, s, 0)
	for n := 1; n < 3; n++ {
		appendTo(t, target(n-1), launchLine(10*n)) // in a folder that is not the link's
		awaitTask(t, s, 10*n)
		write(t, target(n), launchLine(n))
		relink(n)
		awaitTask(t, s, n)
	}
}

func TestFolderThatIsALinkIsWatched(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	w := slow()
	path := filepath.Join(dir, "link", "s.log")
	write(t, path, launchLine(1))
	// Two names of one folder: the system tells events under one of them only.
	one, two := followWith(t, SourceOptions{Path: path}, w), followWith(t, SourceOptions{Path: filepath.Join(dir, "real", "s.log")}, w)
	for task := 2; task < 10; task++ {
		appendTo(t, path, launchLine(task))
		awaitTask(t, one, task)
		awaitTask(t, two, task)
	}
}
