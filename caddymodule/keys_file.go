package caddymodule

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// keyFiles are the files of keys in use, by path. All configurations of a process share
// them: what a key has used up is not forgotten by a reload.
var keyFiles = caddy.NewUsagePool()

// keyFile is a file of keys. Nothing watches it: who has a request looks whether it
// changed, one a second.
type keyFile struct {
	path  string
	table atomic.Pointer[keyTable] // the last that could be read

	mu     sync.Mutex // held while the file is read
	looked time.Time
	info   os.FileInfo // of what was read; nil: nothing
	fault  error       // of what was read
	sum    [sha256.Size]byte
	broken string // the complaint that stands; empty: none
}

// keysEvery is how long a change of the file may go unseen.
const keysEvery = time.Second

// unsettled is how old a change must be for the file's time to tell it from the next
// one: clocks of file systems are as coarse as this.
const unsettled = 2 * time.Second

// openKeys takes a reference to a file of keys and reads it. Placeholders are expanded;
// relative paths are those of the process. Each call that succeeds needs one of closeKeys.
func openKeys(path string) (*keyFile, error) {
	path, err := caddy.NewReplacer().ReplaceOrErr(path, true, true)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("file of keys: %w", err)
	}
	v, _, err := keyFiles.LoadOrNew(path, func() (caddy.Destructor, error) {
		return &keyFile{path: path}, nil
	})
	if err != nil {
		return nil, err
	}
	f := v.(*keyFile)
	f.mu.Lock()
	err = f.read(time.Now())
	f.mu.Unlock()
	if err != nil {
		_ = closeKeys(&f)
		return nil, fmt.Errorf("file of keys %s: %w", path, err)
	}
	return f, nil
}

// closeKeys gives a reference back, if there is one.
func closeKeys(f **keyFile) error {
	if *f == nil {
		return nil
	}
	_, err := keyFiles.Delete((*f).path)
	*f = nil
	return err
}

// find returns the key of a secret; nil: nobody has it.
func (f *keyFile) find(secret string, now time.Time, log *slog.Logger) *key {
	f.look(now, log)
	return f.table.Load().find(secret)
}

// look reads the file again if it changed. A file that cannot be used leaves in force
// what was read before, and is complained about once. One request looks at a time; the
// others do not wait for it.
func (f *keyFile) look(now time.Time, log *slog.Logger) {
	if !f.mu.TryLock() {
		return
	}
	defer f.mu.Unlock()
	if now.Sub(f.looked) < keysEvery {
		return
	}
	before := f.table.Load()
	if err := f.read(now); err != nil {
		if f.broken != err.Error() {
			f.broken = err.Error()
			log.Error("file of keys cannot be used, the keys read before stay in force", "file", f.path, "error", err)
		}
		return
	}
	if f.broken != "" || f.table.Load() != before {
		f.broken = ""
		log.Info("file of keys was read", "file", f.path, "keys", len(f.table.Load().keys))
	}
}

// read reads the file, unless it is the one that was read last.
func (f *keyFile) read(now time.Time) error {
	f.looked = now
	info, err := os.Stat(f.path)
	if err != nil {
		f.info = nil
		return err
	}
	if f.unchanged(info, now) {
		return f.fault
	}
	f.info, f.fault = info, f.load()
	return f.fault
}

// load makes a table of what the file says now, unless it says what it said before.
func (f *keyFile) load() error {
	content, err := readKeyFile(f.path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	if f.table.Load() != nil && sum == f.sum {
		return nil
	}
	t, err := parseKeys(content)
	if err != nil {
		return err
	}
	t.inherit(f.table.Load())
	f.table.Store(t)
	f.sum = sum
	return nil
}

func (f *keyFile) unchanged(info os.FileInfo, now time.Time) bool {
	return f.info != nil && os.SameFile(f.info, info) && f.info.Size() == info.Size() &&
		f.info.ModTime().Equal(info.ModTime()) && now.Sub(info.ModTime()) >= unsettled
}

// inherit takes over what keys of the same name have used up.
func (t *keyTable) inherit(old *keyTable) {
	if old == nil {
		return
	}
	for name, k := range t.keys {
		if before := old.keys[name]; before != nil {
			k.use = before.use
		}
	}
}

func readKeyFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxKeyFile {
		return nil, fmt.Errorf("it is larger than %d bytes", maxKeyFile)
	}
	return bytes.TrimPrefix(content, []byte("\ufeff")), nil
}

// Destruct has nothing to end: the file is only open while it is read.
func (f *keyFile) Destruct() error { return nil }

// Interface guards.
var _ caddy.Destructor = (*keyFile)(nil)
