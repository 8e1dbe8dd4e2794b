package caddymodule

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/klauspost/compress/zstd"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// readBody reads the body of a request and unpacks it. Its errors are for the client.
//
// The body is read to its end: over HTTP/1 a client that leaves is noticed only
// then. It is not read again after that: each read sets a deadline on the
// connection (Caddy's own, read_body_idle), and the one set by a read after the end
// would stand and cut the answer.
func readBody(p *reply, r *http.Request, limit int64, timeout time.Duration, mem *share) ([]byte, error) {
	unpack, err := unpacker(r.Header.Get("Content-Encoding"))
	if err != nil {
		return nil, err
	}
	if r.ContentLength > limit {
		return nil, errTooLarge(limit)
	}
	// Not every writer has deadlines; those of the server remain.
	_ = p.rc.SetReadDeadline(time.Now().Add(timeout))
	raw, err := readAll(http.MaxBytesReader(p.w, r.Body, limit), r.ContentLength, limit, mem)
	p.unread = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil {
		return nil, bodyError(r, err, limit, timeout)
	}
	_ = p.rc.SetReadDeadline(time.Time{})
	if unpack == nil {
		return raw, nil
	}
	return unpack(raw, limit, mem)
}

// How much memory a body gets at first: one of unknown length, and one whose length was
// told. To tell one costs a client nothing: memory is for what came.
const (
	firstStep  = 64 << 10
	toldAtOnce = 256 << 10
)

// readAll reads r to its end, at most limit bytes, into memory that is set aside
// before it is allocated: a step at a time, each as large as all before it, up to size
// bytes if that is known (not -1).
func readAll(r io.Reader, size, limit int64, mem *share) ([]byte, error) {
	if size > mem.limit {
		return nil, errTooLarge(mem.limit)
	}
	step := min(size, toldAtOnce)
	if size < 0 {
		step = mem.atMost(min(firstStep, limit))
	}
	var body, next []byte
	for {
		if err := mem.grow(step); err != nil {
			return nil, err
		}
		body = append(append(make([]byte, 0, int64(len(body))+step), body...), next...)
		for len(body) < cap(body) {
			n, err := r.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if err == io.EOF {
				return body, nil
			}
			if err != nil {
				return nil, err
			}
		}
		next = make([]byte, 1) // there is more, or an end that did not come with the last bytes
		if _, err := io.ReadFull(r, next); err == io.EOF {
			return body, nil
		} else if err != nil {
			return nil, err
		}
		have := int64(len(body))
		if have >= limit {
			return nil, errTooLarge(limit)
		}
		step = max(have, firstStep)
		if left := size - have; left > 0 {
			step = min(step, left)
		}
		step = mem.atMost(min(step, limit-have))
	}
}

// bodyError is what the client hears of a body that could not be read.
func bodyError(r *http.Request, err error, limit int64, timeout time.Duration) error {
	if ours(err) {
		return err
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return errTooLarge(limit)
	}
	if e, ok := errors.AsType[caddyhttp.HandlerError](err); ok && e.StatusCode == http.StatusRequestEntityTooLarge {
		return refuse(e.StatusCode, "request_too_large", "the request is larger than this site allows")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refuse(http.StatusRequestTimeout, "request_timeout",
			fmt.Sprintf("the request did not arrive within %s", timeout))
	}
	if r.Context().Err() != nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return &fleet.RequestError{Reason: fleet.ReasonCancelled, Message: "the client left", Err: context.Cause(r.Context())}
	}
	return refuse(http.StatusBadRequest, "invalid_body", "the body of the request cannot be read")
}

// ours reports whether an error says itself what the client hears.
func ours(err error) bool {
	if _, ok := errors.AsType[*openai.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[*fleet.RequestError](err)
	return ok
}

func errTooLarge(limit int64) *openai.Error {
	return refuse(http.StatusRequestEntityTooLarge, "request_too_large",
		"the request is larger than "+humanize.IBytes(uint64(limit)))
}

// unpackFunc decodes a body; more than limit bytes are an error.
type unpackFunc func(packed []byte, limit int64, mem *share) ([]byte, error)

// unpacker returns how a body is decoded; nil: it is as it should be.
func unpacker(encoding string) (unpackFunc, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity":
		return nil, nil
	case "gzip", "x-gzip":
		return gunzip, nil
	case "zstd":
		return unzstd, nil
	}
	return nil, refuse(http.StatusUnsupportedMediaType, "unsupported_encoding",
		"the Content-Encoding of the request is not known here: use gzip, zstd or none")
}

func gunzip(packed []byte, limit int64, mem *share) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, errPacked("gzip")
	}
	return unpacked(z, "gzip", limit, mem)
}

// zstdWindow is how far back a zstd body may refer: what RFC 8878 asks of every
// decoder.
const zstdWindow = 8 << 20

func unzstd(packed []byte, limit int64, mem *share) ([]byte, error) {
	z, err := zstd.NewReader(bytes.NewReader(packed),
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, errPacked("zstd")
	}
	defer z.Close()
	return unpacked(z, "zstd", limit, mem)
}

func unpacked(z io.Reader, encoding string, limit int64, mem *share) ([]byte, error) {
	body, err := readAll(z, -1, limit, mem)
	if err != nil && !ours(err) {
		return nil, errPacked(encoding)
	}
	return body, err
}

func errPacked(encoding string) *openai.Error {
	return refuse(http.StatusBadRequest, "invalid_body", "the body of the request is not the "+encoding+" that its header says")
}
