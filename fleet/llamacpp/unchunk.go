package llamacpp

import (
	"errors"
	"io"
)

var errCoding = errors.New("the chunked coding of an answer is broken")

// unchunker undoes the chunked coding of a body (RFC 9112, section 7.1). It reads into the
// buffer that it is given and moves the data together there, so that a chunk costs one
// read and one short copy.
type unchunker struct {
	r    io.Reader
	at   chunkPlace
	left uint64 // of the data of this chunk; in a size: what it is so far
	line int    // bytes of this line so far; in the trailer: of all of it
	bare bool   // nothing stands on this line of the trailer
	err  error  // what every further read returns
}

// chunkPlace is what comes next.
type chunkPlace uint8

const (
	chunkSize  chunkPlace = iota
	chunkBlank            // behind a size
	chunkExtension
	chunkSizeLF
	chunkData
	chunkCR
	chunkLF
	chunkTrailer
	chunkTrailerLF
	chunkEnd
)

// maxChunkLine bounds the line before the data, and what follows after the last.
const maxChunkLine = 4 << 10

func (u *unchunker) Read(b []byte) (int, error) {
	for u.err == nil {
		n, err := u.r.Read(b)
		data, ok := u.decode(b[:n])
		switch {
		case !ok:
			u.err = errCoding
		case u.at == chunkEnd:
			u.err = io.EOF
		case err == io.EOF:
			u.err = io.ErrUnexpectedEOF
		default:
			u.err = err
		}
		if data > 0 || n == 0 {
			return data, u.err
		}
	}
	return 0, u.err
}

// decode moves the data in b to its beginning and returns how much that is.
func (u *unchunker) decode(b []byte) (data int, ok bool) {
	for i := 0; i < len(b) && u.at != chunkEnd; {
		if u.at == chunkData {
			n := int(min(u.left, uint64(len(b)-i)))
			copy(b[data:], b[i:i+n])
			data, i = data+n, i+n
			if u.left -= uint64(n); u.left == 0 {
				u.at = chunkCR
			}
			continue
		}
		if !u.step(b[i]) {
			return data, false
		}
		i++
	}
	return data, true
}

// step takes a byte that is no data.
func (u *unchunker) step(c byte) bool {
	if u.line++; u.line > maxChunkLine {
		return false
	}
	switch u.at {
	case chunkSize:
		return u.size(c)
	case chunkBlank:
		if c == '\r' {
			u.at = chunkSizeLF
		}
		return c == '\r' || c == ' ' || c == '\t'
	case chunkExtension:
		if c == '\r' {
			u.at = chunkSizeLF
		}
		return c != '\n'
	case chunkSizeLF:
		u.at, u.line = chunkData, 0
		if u.left == 0 {
			u.at, u.bare = chunkTrailer, true
		}
		return c == '\n'
	case chunkCR:
		u.at = chunkLF
		return c == '\r'
	case chunkLF:
		u.at, u.line = chunkSize, 0
		return c == '\n'
	case chunkTrailer:
		if c == '\r' {
			u.at = chunkTrailerLF
			return true
		}
		u.bare = false
		return c != '\n'
	default: // chunkTrailerLF
		u.at = chunkTrailer
		if u.bare {
			u.at = chunkEnd
		}
		u.bare = true
		return c == '\n'
	}
}

// size takes a byte of the line that says how long the data is.
func (u *unchunker) size(c byte) bool {
	const digits = 15 // more do not fit
	switch {
	case '0' <= c && c <= '9':
		u.left = u.left<<4 | uint64(c-'0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		u.left = u.left<<4 | uint64(c|0x20-'a'+10)
	case u.line == 1:
		return false
	case c == '\r':
		u.at = chunkSizeLF
		return true
	case c == ';':
		u.at = chunkExtension
		return true
	default:
		u.at = chunkBlank
		return c == ' ' || c == '\t'
	}
	return u.line <= digits
}
