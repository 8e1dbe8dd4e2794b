package caddymodule

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// aKeyRing is a file of keys on disk, and what is said about it.
type aKeyRing struct {
	t    *testing.T
	path string
	file *keyFile
	said bytes.Buffer
	now  time.Time
}

func openKeyRing(t *testing.T, content string) *aKeyRing {
	t.Helper()
	r := &aKeyRing{t: t, path: filepath.Join(t.TempDir(), "keys.json")}
	r.write(content)
	file, err := openKeys(r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.file, r.now = file, time.Now()
	t.Cleanup(func() { _ = closeKeys(&file) })
	return r
}

func (r *aKeyRing) write(content string) {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// later is some time later.
func (r *aKeyRing) later(d time.Duration) { r.now = r.now.Add(d) }

// has says whose a secret is; empty: nobody's.
func (r *aKeyRing) has(secret string) string {
	if k := r.file.find(secret, r.now, slog.New(slog.NewTextHandler(&r.said, nil))); k != nil {
		return k.name
	}
	return ""
}

func (r *aKeyRing) want(secret, name string) {
	r.t.Helper()
	if got := r.has(secret); got != name {
		r.t.Errorf("secret %q: got key %q, want %q; said %s", secret, got, name, r.said.String())
	}
}

func TestAChangedFileOfKeysHoldsWithinASecond(t *testing.T) {
	r := openKeyRing(t, aKeyFile("ann sk-1"))
	r.want("sk-1", "ann")
	r.later(keysEvery)
	r.want("sk-1", "ann")
	r.write(aKeyFile("ann sk-2")) // as long as before, and perhaps within one tick of the file's clock
	r.later(keysEvery / 2)
	r.want("sk-2", "") // nobody looks twice a second
	r.later(keysEvery / 2)
	r.want("sk-1", "")
	r.want("sk-2", "ann")
	if got := strings.Count(r.said.String(), "was read"); got != 1 {
		t.Errorf("it was said %d times that the file was read, want once: %s", got, r.said.String())
	}
	if strings.Contains(r.said.String(), "sk-") || strings.Contains(r.said.String(), hashOf("sk-2").String()) {
		t.Errorf("a secret or a hash was logged: %s", r.said.String())
	}
}

// A file that was replaced by an older one of the same size is another file.
func TestAFileOfKeysMayBeReplaced(t *testing.T) {
	r := openKeyRing(t, aKeyFile("ann sk-1"))
	next := r.path + ".next"
	if err := os.WriteFile(next, []byte(aKeyFile("bob sk-1")), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(r.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(next, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, r.path); err != nil {
		t.Fatal(err)
	}
	r.later(time.Hour)
	r.want("sk-1", "bob")
}

func TestABrokenFileOfKeysLeavesTheOldOneInForce(t *testing.T) {
	r := openKeyRing(t, aKeyFile("ann sk-1"))
	for name, spoil := range map[string]func(){
		"not JSON":  func() { r.write(`{"keys": [` + "\n" + `sk-4815162342`) },
		"a secret":  func() { r.write(`{"keys": [{"name": "ann", "hashes": ["sk-4815162342"]}]}`) },
		"gone":      func() { os.Remove(r.path) },
		"a folder":  func() { os.Remove(r.path); os.Mkdir(r.path, 0o700) },
		"too large": func() { r.write(strings.Repeat(" ", maxKeyFile+1)) },
	} {
		r.said.Reset()
		spoil()
		for range 5 {
			r.later(keysEvery)
			r.want("sk-1", "ann")
		}
		if got := strings.Count(r.said.String(), "cannot be used"); got != 1 {
			t.Errorf("%s: it was complained about %d times, want once: %s", name, got, r.said.String())
		}
		if strings.Contains(r.said.String(), "4815162342") || !strings.Contains(r.said.String(), r.path) {
			t.Errorf("%s: got %s, want the file and no secret", name, r.said.String())
		}
		os.Remove(r.path)
		r.write(aKeyFile("ann sk-1"))
		r.later(keysEvery)
		r.want("sk-1", "ann")
		if got := strings.Count(r.said.String(), "was read"); got != 1 {
			t.Errorf("%s: it was said %d times that the file is all right again, want once: %s", name, got, r.said.String())
		}
	}
}

func TestWhatAKeyUsedUpSurvivesItsEntry(t *testing.T) {
	r := openKeyRing(t, aKeyFile(`ann sk-1 "per_minute": 2`))
	first := r.file.find("sk-1", r.now, slog.Default())
	if _, over := first.use.begin(r.now, 0, 2); over != nil {
		t.Fatalf("got %+v, want the first request to begin", over)
	}
	r.write(aKeyFile(`ann sk-2 "per_minute": 1`, "bob sk-1"))
	again, err := openKeys(r.path) // as a reload does
	if err != nil {
		t.Fatal(err)
	}
	defer closeKeys(&again)
	if again != r.file {
		t.Fatal("two configurations have two files of keys")
	}
	ann, bob := again.find("sk-2", r.now, slog.Default()), again.find("sk-1", r.now, slog.Default())
	if _, over := ann.use.begin(r.now, 0, ann.perMinute); over == nil {
		t.Error("the first request was forgotten")
	}
	if bob.use == first.use {
		t.Error("another key inherited the count of a secret")
	}
}

func TestAConfigurationWithABrokenFileOfKeysIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	for name, content := range map[string]string{"missing": "", "broken": "{\n\"keys\": 1}"} {
		if content != "" {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := openKeys(path)
		if err == nil || f != nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
	if _, err := openKeys("{env.SLOTFLEET_TEST_UNSET}"); err == nil {
		t.Error("an empty placeholder was accepted")
	}
	if n, ok := keyFiles.References(path); ok {
		t.Errorf("%d references are left", n)
	}
}
