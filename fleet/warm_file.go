package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// What is remembered of caches is kept in two files of one folder: the key of the
// hashes, and a database with one record an instance.
const (
	keyFile  = "fleet.key"
	warmData = "warm.db"
)

const (
	// warmEvery is how often what has changed is written.
	warmEvery = 5 * time.Second

	// warmLock is how long another process may hold the database.
	warmLock = time.Second
)

var (
	warmBucket = []byte("instances")
	warmMeta   = []byte("meta")
	warmKeyed  = []byte("key") // a fingerprint of the key by which the hashes were made
)

// warmFile is the database, open.
type warmFile struct {
	dir  string
	key  [16]byte
	db   *bbolt.DB
	log  *slog.Logger
	stop context.CancelFunc
	done chan struct{} // closed when nothing is written any more
}

// openWarm opens the files of a folder, which it makes if need be. Files that cannot
// be read are put aside. An error: they cannot be used; the message says why.
func openWarm(dir string, log *slog.Logger) (*warmFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := readKey(dir, log)
	if err != nil {
		return nil, err
	}
	f := &warmFile{dir: dir, key: key, log: log}
	path := filepath.Join(dir, warmData)
	err = f.open(path)
	if unreadable(err) {
		if err := putAside(path, err, log); err != nil {
			return nil, err
		}
		err = f.open(path)
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		err = fmt.Errorf("%s is used by another process", path)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// open opens the database, and empties it if its hashes were made by another key.
func (f *warmFile) open(path string) (err error) {
	// The list of free pages must be in the file: bbolt makes one from all pages in a
	// goroutine of its own, where a broken page ends the process.
	err = guarded(func() (err error) {
		f.db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: warmLock})
		return err
	})
	if err != nil {
		return err
	}
	mark := fmt.Appendf(nil, "%016x", xxhash.Sum64(f.key[:]))
	err = guarded(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error {
			meta, err := tx.CreateBucketIfNotExists(warmMeta)
			if err != nil {
				return err
			}
			if !bytes.Equal(meta.Get(warmKeyed), mark) && tx.Bucket(warmBucket) != nil {
				if err := tx.DeleteBucket(warmBucket); err != nil {
					return err
				}
			}
			if _, err := tx.CreateBucketIfNotExists(warmBucket); err != nil {
				return err
			}
			return meta.Put(warmKeyed, mark)
		})
	})
	if err != nil {
		_ = guarded(f.db.Close)
	}
	return err
}

// errUnreadable: the database is not one, or broken.
var errUnreadable = errors.New("it cannot be read")

// guarded does something with the database. It is mapped into memory, and one that is
// cut short or garbled shows only when its pages are touched: as a fault.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("%w: %v", errUnreadable, x)
		}
	}()
	return f()
}

// unreadable reports whether the file is to blame, and not the system or another
// process.
func unreadable(err error) bool {
	if err == nil || errors.Is(err, bolterrors.ErrTimeout) {
		return false
	}
	_, system := errors.AsType[*fs.PathError](err)
	return !system
}

// putAside renames a file that cannot be read, so that a new one can be made.
func putAside(path string, why error, log *slog.Logger) error {
	aside := path + ".unreadable"
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	log.Warn("a file of the fleet cannot be read: it was put aside, and a new one is begun",
		"file", path, "aside", aside, "error", why.Error())
	return nil
}

// readKey reads the key of the hashes, or makes one. Processes that start at one
// moment find the same one.
func readKey(dir string, log *slog.Logger) (key [16]byte, err error) {
	path := filepath.Join(dir, keyFile)
	for range 3 {
		text, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := makeKey(path); err != nil {
				return key, err
			}
			continue
		case err != nil:
			return key, err
		}
		n, err := hex.Decode(key[:], bytes.TrimSpace(text[:min(len(text), 2*len(key)+1)]))
		if err == nil && n == len(key) {
			return key, nil
		}
		if err := putAside(path, errors.New("it is not 32 hexadecimal digits"), log); err != nil {
			return key, err
		}
	}
	return key, fmt.Errorf("%s cannot be read", path)
}

// makeKey writes a new key, unless another process was faster.
func makeKey(path string) error {
	var key [16]byte
	_, _ = rand.Read(key[:])
	tmp, err := os.CreateTemp(filepath.Dir(path), keyFile+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = fmt.Fprintf(tmp, "%x\n", key)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	err = os.Link(tmp.Name(), path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return os.Rename(tmp.Name(), path) // a file system without links
}

// load reads all records, and deletes those that are not taken.
func (f *warmFile) load(take func(k warmKey, rec []byte) bool) error {
	return guarded(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(warmBucket)
			var useless [][]byte
			err := b.ForEach(func(name, rec []byte) error {
				if k, ok := keyOf(name); !ok || !take(k, rec) {
					useless = append(useless, bytes.Clone(name))
				}
				return nil
			})
			for _, name := range useless {
				err = errors.Join(err, b.Delete(name))
			}
			return err
		})
	})
}

// warmChange is a record to write.
type warmChange struct{ name, record []byte }

// save writes records, all or none.
func (f *warmFile) save(changes []warmChange) error {
	if len(changes) == 0 {
		return nil
	}
	return guarded(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(warmBucket)
			for _, c := range changes {
				if err := b.Put(c.name, c.record); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
