package fleet

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/bbolt"
)

// logged is a log that the test reads.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) warnings() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "level=WARN")
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// edge is one life of a head with one node.
func edge(t *testing.T, dir string, log *logged) (*Manager, *Applied) {
	t.Helper()
	m, a := fleetOf(t, func(p *Policy) { p.Warm.Dir, p.Log = dir, log.logger() }, serving("m", 4, "end."))
	return m, a
}

func TestWhatIsCachedSurvivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		dir := filepath.Join(t.TempDir(), "new", "folder")
		m, a := edge(t, dir, &log)
		prompts := [][]uint64{somePrompt(1, 40), somePrompt(2, 3000), somePrompt(3, 1)}
		var want []int
		for _, p := range prompts {
			askOf(t, m, a, p)
			want = append(want, blocksOn(m, "a", p))
		}
		key := m.BlockKey()
		m.Close()
		m, _ = edge(t, dir, &log)
		for i, p := range prompts {
			wantBlocks(t, m, "a", p, want[i])
		}
		if m.BlockKey() != key {
			t.Error("got another key after a restart: the hashes would never be found again")
		}
		if !m.Warm().Kept {
			t.Error("it does not say that it is kept")
		}
		m.Close()
		if n := log.warnings(); n > 0 {
			t.Errorf("got %d warnings, want none:\n%s", n, log.b.String())
		}
		for _, name := range []string{keyFile, warmData} {
			if s, err := os.Stat(filepath.Join(dir, name)); err != nil || s.Mode().Perm() != 0o600 {
				t.Errorf("got mode %v of %s (%v), want 0600", s.Mode(), name, err)
			}
		}
	})
}

// A process that is killed loses the last seconds only.
func TestWhatIsCachedIsWrittenWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		dir := t.TempDir()
		m, a := edge(t, dir, &log)
		prompt := somePrompt(1, 40)
		askOf(t, m, a, prompt)
		time.Sleep(warmEvery + time.Second)
		synctest.Wait()
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		next, _ := edge(t, copied, &log)
		wantBlocks(t, next, "a", prompt, 40)
		if next.BlockKey() != m.BlockKey() {
			t.Error("got another key from the same file")
		}
	})
}

func TestFolderOfAnotherProcessIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log, other logged
		dir := t.TempDir()
		first, _ := edge(t, dir, &other)
		began := time.Now()
		m, a := edge(t, dir, &log)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("waited %s for the other process, want about 1s", took)
		}
		prompt := somePrompt(1, 40)
		askOf(t, m, a, prompt)
		wantBlocks(t, m, "a", prompt, 40) // in memory
		if n := log.warnings(); n != 1 || !strings.Contains(log.b.String(), "another process") {
			t.Errorf("got %d warnings, want one about the other process:\n%s", n, log.b.String())
		}
		if m.Warm().Kept || !first.Warm().Kept {
			t.Error("the second says that it keeps what it knows, or the first does not")
		}
	})
}

func TestBrokenFilesArePutAside(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	garbage := make([]byte, 40000)
	for i := range garbage {
		garbage[i] = byte(r.Uint32())
	}
	for name, breakIt := range map[string]struct {
		file string
		do   func(whole []byte) []byte
	}{
		"no database":    {warmData, func([]byte) []byte { return garbage }},
		"cut short":      {warmData, func(b []byte) []byte { return b[:len(b)/2] }},
		"cut very short": {warmData, func(b []byte) []byte { return b[:100] }},
		"pages of a database that are none": {warmData, func(b []byte) []byte {
			pages := 2 * os.Getpagesize()
			return append(b[:pages:pages], garbage[:len(b)-pages]...)
		}},
		"key of another length": {keyFile, func([]byte) []byte { return []byte("0123") }},
		"no key":                {keyFile, func([]byte) []byte { return garbage }},
		"empty key":             {keyFile, func([]byte) []byte { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logged
				dir := t.TempDir()
				m, a := edge(t, dir, &log)
				prompt := somePrompt(1, 40)
				askOf(t, m, a, prompt)
				m.Close()
				path := filepath.Join(dir, breakIt.file)
				whole, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, breakIt.do(whole), 0o600); err != nil {
					t.Fatal(err)
				}
				m, a = edge(t, dir, &log)
				wantBlocks(t, m, "a", prompt, 0)
				if n := log.warnings(); n != 1 {
					t.Errorf("got %d warnings, want one:\n%s", n, log.b.String())
				}
				if _, err := os.Stat(path + ".unreadable"); err != nil {
					t.Errorf("the broken file is not put aside: %v", err)
				}
				askOf(t, m, a, prompt)
				m.Close()
				m, _ = edge(t, dir, &log)
				wantBlocks(t, m, "a", prompt, 40) // begun anew, and kept
			})
		})
	}
}

func TestHashesOfAnotherKeyAreNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		dir := t.TempDir()
		m, a := edge(t, dir, &log)
		prompt := somePrompt(1, 40)
		askOf(t, m, a, prompt)
		m.Close()
		if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
			t.Fatal(err)
		}
		m, _ = edge(t, dir, &log)
		wantBlocks(t, m, "a", prompt, 0)
		if got := m.Warm().Entries; got != 0 {
			t.Errorf("got %d entries, want none: nobody can ask for them any more", got)
		}
	})
}

func TestFolderThatCannotBeWrittenIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		dir := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		m, a := edge(t, dir, &log)
		askOf(t, m, a, somePrompt(1, 40))
		time.Sleep(time.Minute)
		if n := log.warnings(); n != 1 {
			t.Errorf("got %d warnings, want one:\n%s", n, log.b.String())
		}
	})
}

func TestReloadKeepsTheFileAndMayLeaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		dir, x := t.TempDir(), serving("m", 1, "end.")
		keeping := func(p *Policy) { p.Warm.Dir, p.Log = dir, log.logger() }
		m, _ := fleetOf(t, keeping, x)
		a := apply(t, m, keeping, x)
		synctest.Wait()
		prompt := somePrompt(1, 40)
		askOf(t, m, a, prompt)
		apply(t, m, func(p *Policy) { p.Log = log.logger() }, x) // memory only
		wantBlocks(t, m, "a", prompt, 40)
		if m.Warm().Kept {
			t.Error("it says that it is kept")
		}
		other, _ := edge(t, dir, &log) // the file is free, and all is in it
		wantBlocks(t, other, "a", prompt, 40)
		if n := log.warnings(); n > 0 {
			t.Errorf("got %d warnings, want none:\n%s", n, log.b.String())
		}
	})
}

// Where a new configuration did not come to work, what the one before it said of the
// file holds again.
func TestConfigurationThatFailsGivesTheFileBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		dir, x := t.TempDir(), serving("m", 1, "end.")
		m, a := fleetOf(t, func(p *Policy) { p.Warm.Dir, p.Log = dir, log.logger() }, x)
		prompt := somePrompt(1, 40)
		askOf(t, m, a, prompt)
		next := apply(t, m, func(p *Policy) { p.Warm.Size = 1 << 20 }, x)
		if m.Warm().Kept {
			t.Error("it says that it is kept, against the new configuration")
		}
		next.Withdraw()
		wantBlocks(t, m, "a", prompt, 40)
		if s := m.Warm(); !s.Kept || s.Limit != defaultWarmSize/pairBytes {
			t.Errorf("got %+v, want what the first configuration says", s)
		}
		a.Withdraw()
		if !m.Warm().Kept {
			t.Error("it is not kept any more, although nothing says so")
		}
	})
}

// A manager that waits for its last answer does not keep the file from the next one.
func TestRetiredManagerLeavesTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		dir, prompt := t.TempDir(), somePrompt(1, 40)
		m, a := edge(t, dir, &log)
		s, err := m.Admit(t.Context(), a, Request{Model: "m", Blocks: prompt})
		if err != nil {
			t.Fatal(err)
		}
		m.Retire()
		next, _ := edge(t, dir, &log)
		wantBlocks(t, next, "a", prompt, 40)
		if n := log.warnings(); n > 0 {
			t.Errorf("got %d warnings, want none:\n%s", n, log.b.String())
		}
		s.Close()
	})
}

func TestProcessesThatStartAtOnceShareTheKey(t *testing.T) {
	var log logged
	dir := t.TempDir()
	keys := make([][16]byte, 16)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			key, err := readKey(dir, log.logger())
			if err != nil {
				t.Error(err)
			}
			keys[i] = key
		})
	}
	all.Wait()
	for _, key := range keys {
		if key != keys[0] || key == ([16]byte{}) {
			t.Fatalf("got the keys %x, want one", keys)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("got the files %v, want the key alone", files)
	}
}

// FuzzRecord gives restore what no record is.
func FuzzRecord(f *testing.F) {
	now := time.Now()
	w := newWarmIndex(1 << 20)
	id := w.id("a", "m")
	w.ran(id, somePrompt(1, 300), 1000)
	rec := w.record(id, nil, now)
	f.Add(rec[:len(rec)-recordSum])
	f.Add([]byte{recordVersion})
	f.Fuzz(func(t *testing.T, body []byte) {
		body = binary.LittleEndian.AppendUint64(body, xxhash.Sum64(body)) // else it comes nowhere
		w := newWarmIndex(4000)
		if !w.restore(warmKey{"a", "m"}, body, now) {
			return
		}
		id := w.id("a", "m")
		if c := w.confidence(id); !(c >= 0 && c <= 1) {
			t.Errorf("got confidence %v", c)
		}
		if pairs, _ := w.size(); pairs > w.limit {
			t.Errorf("got %d pairs, want at most %d", pairs, w.limit)
		}
		w.ran(id, somePrompt(2, 50), 100)
		w.forget(id)
		if pairs, _ := w.size(); pairs != 0 || w.instances[id].held != 0 {
			t.Errorf("got %d pairs and %d blocks left after it was forgotten", pairs, w.instances[id].held)
		}
	})
}

// No hash of a record that was changed or is old is believed.
func TestOddRecordsAreLeftOut(t *testing.T) {
	now := time.Now()
	w := newWarmIndex(1 << 20)
	id := w.id("a", "m")
	prompt := somePrompt(1, 300)
	w.ran(id, prompt, 1000)
	rec := w.record(id, nil, now)
	k := w.instances[id].key
	take := func(rec []byte, at time.Time) int {
		fresh := newWarmIndex(1 << 20)
		fresh.restore(k, rec, at)
		pairs, _ := fresh.size()
		return pairs
	}
	if got, want := take(rec, now), marks(300); got != want {
		t.Fatalf("got %d entries of a good record, want %d", got, want)
	}
	if got := take(rec, now.Add(recordAge+time.Hour)); got != 0 {
		t.Errorf("got %d entries of an old record, want none", got)
	}
	for i := range rec {
		odd := bytes.Clone(rec)
		odd[i] ^= 1
		if got := take(odd, now); got != 0 {
			t.Fatalf("got %d entries of a record whose byte %d was changed, want none", got, i)
		}
		if got := take(rec[:i], now); got != 0 {
			t.Fatalf("got %d entries of %d bytes of a record, want none", got, i)
		}
	}
	if _, ok := keyOf([]byte("no separator")); ok {
		t.Error("a name without a model is taken")
	}
}

// Records of nodes that nobody has any more go from the file.
func TestUselessRecordsAreDeleted(t *testing.T) {
	var log logged
	dir := t.TempDir()
	f, err := openWarm(dir, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.save([]warmChange{{[]byte("x"), []byte("y")}, {warmKey{"a", "m"}.name(), []byte("z")}}); err != nil {
		t.Fatal(err)
	}
	if err := f.load(func(warmKey, []byte) bool { return false }); err != nil {
		t.Fatal(err)
	}
	_ = f.db.View(func(tx *bbolt.Tx) error {
		if n := tx.Bucket(warmBucket).Stats().KeyN; n != 0 {
			t.Errorf("got %d records, want none", n)
		}
		return nil
	})
	if err := f.db.Close(); err != nil {
		t.Error(err)
	}
}
