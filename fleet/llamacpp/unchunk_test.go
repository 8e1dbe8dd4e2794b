package llamacpp

import (
	"bytes"
	"errors"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
	"testing/iotest"
)

// unchunk undoes the coding of what comes in pieces, and reads no more than size bytes
// at a time.
func unchunk(coded []byte, pieces, size int) ([]byte, error) {
	var out []byte
	u := &unchunker{r: &some{bytes.NewReader(coded), pieces}}
	for b := make([]byte, size); ; {
		n, err := u.Read(b)
		out = append(out, b[:n]...)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
	}
}

// some reads n bytes at a time.
type some struct {
	r *bytes.Reader
	n int
}

func (s *some) Read(b []byte) (int, error) { return s.r.Read(b[:min(len(b), s.n)]) }

// coded is data in chunks of so many bytes.
func coded(data []byte, size int) []byte {
	var b bytes.Buffer
	w := httputil.NewChunkedWriter(&b)
	for len(data) > 0 {
		n := min(size, len(data))
		_, _ = w.Write(data[:n])
		data = data[n:]
	}
	_ = w.Close()
	b.WriteString("\r\n")
	return b.Bytes()
}

func TestChunksAreUndoneHoweverTheyCome(t *testing.T) {
	data := []byte(strings.Repeat("data: {\"a\":\"b\"}\r\n\r\n", 20))
	for _, size := range []int{1, 15, 16, 19, 300, 1000} {
		c := coded(data, size)
		for pieces := 1; pieces < 40; pieces++ {
			for _, at := range []int{1, 2, 3, 7, 64, 4096} {
				if got, err := unchunk(c, pieces, at); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("chunks of %d in pieces of %d, read %d at a time: got %q, %v", size, pieces, at, got, err)
				}
			}
		}
	}
}

func TestBodyThatEndsInsideItsCodingIsTorn(t *testing.T) {
	data := []byte("data: 1\n\ndata: 2\n\n")
	c := coded(data, 9)
	for cut := range c {
		got, err := unchunk(c[:cut], 5, 64)
		if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.HasPrefix(data, got) {
			t.Errorf("cut after %d: got %q, %v", cut, got, err)
		}
	}
	broken := errors.New("reset")
	u := &unchunker{r: io.MultiReader(bytes.NewReader(c[:14]), iotest.ErrReader(broken))}
	if got, err := io.ReadAll(u); !errors.Is(err, broken) || string(got) != string(data[:9]) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestOddChunks(t *testing.T) {
	for _, tt := range []struct {
		name, in, want string
		broken         bool
	}{
		{"an extension", "3;a=\"b\"\r\nabc\r\n0\r\n\r\n", "abc", false},
		{"white space after the size", "3 \t\r\nabc\r\n0\r\n\r\n", "abc", false},
		{"capitals and zeros", "0003\r\nabc\r\n0A\r\n0123456789\r\n000\r\n\r\n", "abc0123456789", false},
		{"a trailer", "3\r\nabc\r\n0\r\nX-A: b\r\nX-C: d\r\n\r\n", "abc", false},
		{"more behind the end", "3\r\nabc\r\n0\r\n\r\nHTTP/1.1 200 OK", "abc", false},
		{"no size", "\r\nabc\r\n0\r\n\r\n", "", true},
		{"a sign", "+3\r\nabc\r\n0\r\n\r\n", "", true},
		{"no number", "3g\r\nabc\r\n0\r\n\r\n", "", true},
		{"too many digits", "1000000000000000\r\nabc\r\n0\r\n\r\n", "", true},
		{"a size without a carriage return", "3\nabc\r\n0\r\n\r\n", "", true},
		{"an extension without one", "3;a\nabc\r\n0\r\n\r\n", "", true},
		{"a carriage return alone", "3\rabc\r\n0\r\n\r\n", "", true},
		{"data that is too long", "3\r\nabcd\r\n0\r\n\r\n", "abc", true},
		{"an end without a carriage return", "3\r\nabc\n0\r\n\r\n", "abc", true},
		{"a trailer without one", "3\r\nabc\r\n0\r\nX-A: b\n\r\n", "abc", true},
		{"an endless extension", "3;" + strings.Repeat("a", maxChunkLine) + "\r\nabc\r\n0\r\n\r\n", "", true},
		{"an endless trailer", "3\r\nabc\r\n0\r\n" + strings.Repeat("A: b\r\n", maxChunkLine/6+1) + "\r\n", "abc", true},
	} {
		for _, pieces := range []int{1, 2, 1 << 20} {
			got, err := unchunk([]byte(tt.in), pieces, 1<<20)
			if string(got) != tt.want || errors.Is(err, errCoding) != tt.broken || !tt.broken && err != nil {
				t.Errorf("%s, in pieces of %d: got %q, %v", tt.name, pieces, got, err)
			}
		}
	}
}

// What net/http undoes is undone, and what it takes for broken gives no more than that.
func FuzzUnchunk(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\n"), uint8(1))
	f.Add([]byte("3;a=b\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nA: b\r\n\r\n"), uint8(5))
	f.Fuzz(func(t *testing.T, in []byte, pieces uint8) {
		want, wantErr := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(in)))
		got, err := unchunk(in, int(pieces)+1, 64)
		if err == nil && (wantErr != nil || !bytes.Equal(got, want)) {
			t.Fatalf("%q: got %q, net/http %q, %v", in, got, want, wantErr)
		}
		if err != nil && wantErr == nil && !bytes.HasPrefix(want, got) {
			t.Fatalf("%q: got %q, %v, net/http %q", in, got, err, want)
		}
	})
}
