package slotlog

import (
	"io/fs"
	"os"
	"path/filepath"
)

// fileSystem is what a tail needs of a file system.
type fileSystem interface {
	stat(path string) (fs.FileInfo, error)
	open(path string) (openedFile, error)

	// resolve follows symbolic links; path itself where that fails.
	resolve(path string) string

	// same reports whether two infos are of one file, whatever it is called.
	same(a, b fs.FileInfo) bool
}

// openedFile is an open log.
type openedFile interface {
	Stat() (fs.FileInfo, error)
	ReadAt(b []byte, off int64) (int, error)
	Close() error
}

// diskFiles is the system's own.
type diskFiles struct{}

func (diskFiles) stat(path string) (fs.FileInfo, error) { return os.Stat(path) }
func (diskFiles) open(path string) (openedFile, error)  { return os.Open(path) }
func (diskFiles) same(a, b fs.FileInfo) bool            { return os.SameFile(a, b) }

func (diskFiles) resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}
