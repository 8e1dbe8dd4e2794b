package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

func (e *edge) buffered() int64 { return currentState().memory.used.Load() }

// wantFree waits until no memory is set aside.
func (e *edge) wantFree() {
	e.t.Helper()
	await(e.t, "the memory to be given back", func() bool {
		if n := e.buffered(); n < 0 {
			e.t.Fatalf("%d bytes are set aside: something was given back twice", n)
		}
		return e.buffered() == 0
	})
}

func TestBodiesTakeWhatTheyNeed(t *testing.T) {
	const limit = 1 << 20
	for _, c := range []struct {
		size, known, limit, buffer int64
		held                       int64
		status                     int // of the error; 0: none
	}{
		{size: 1000, known: 1000, limit: limit, buffer: limit, held: 1000},
		{size: 0, known: 0, limit: limit, buffer: limit, held: 0},
		{size: toldAtOnce, known: toldAtOnce, limit: limit, buffer: limit, held: toldAtOnce},
		{size: toldAtOnce + 1, known: toldAtOnce + 1, limit: limit, buffer: limit, held: toldAtOnce + 1},
		{size: limit, known: limit, limit: limit, buffer: limit, held: limit},
		{size: 1<<20 - 1, known: 1<<20 - 1, limit: limit, buffer: limit, held: 1<<20 - 1},
		{size: 0, known: -1, limit: limit, buffer: limit, held: firstStep},
		{size: 1000, known: -1, limit: limit, buffer: limit, held: firstStep},
		{size: firstStep, known: -1, limit: limit, buffer: limit, held: firstStep},
		{size: firstStep + 1, known: -1, limit: limit, buffer: limit, held: 2 * firstStep},
		{size: 300 << 10, known: -1, limit: limit, buffer: limit, held: 8 * firstStep},
		{size: limit, known: -1, limit: limit, buffer: limit, held: limit},
		{size: 1000, known: -1, limit: 1000, buffer: limit, held: 1000},
		{size: 1001, known: -1, limit: 1000, buffer: limit, status: 413},
		{size: 70 << 10, known: -1, limit: limit, buffer: 70 << 10, held: 70 << 10},
		{size: 70<<10 + 1, known: -1, limit: limit, buffer: 70 << 10, status: 413},
		{size: 1000, known: 1000, limit: limit, buffer: 999, status: 413},
	} {
		for name, slow := range map[string]func(io.Reader) io.Reader{"at once": same, "by halves": iotest.HalfReader, "end with data": iotest.DataErrReader} {
			t.Run(fmt.Sprintf("%+v %s", c, name), func(t *testing.T) {
				mem := share{of: new(memory), limit: c.buffer}
				sent := bytes.Repeat([]byte("x"), int(c.size))
				body, err := readAll(slow(bytes.NewReader(sent)), c.known, c.limit, &mem)
				if c.status != 0 {
					if e, ok := errors.AsType[*openai.Error](err); !ok || e.Status != c.status {
						t.Errorf("got %d bytes, %v, want an error %d", len(body), err, c.status)
					}
				} else if err != nil || !bytes.Equal(body, sent) {
					t.Errorf("got %d bytes, %v", len(body), err)
				} else if mem.held != c.held || int64(cap(body)) != c.held {
					t.Errorf("set aside %d, allocated %d, want %d", mem.held, cap(body), c.held)
				}
				if mem.of.used.Load() != mem.held {
					t.Errorf("%d are set aside, %d of them by the only request", mem.of.used.Load(), mem.held)
				}
				mem.release()
				mem.release()
				if n := mem.of.used.Load(); n != 0 {
					t.Errorf("%d are left", n)
				}
			})
		}
	}
}

func same(r io.Reader) io.Reader { return r }

// TestMemoryIsTakenBeforeItIsAllocated: a request that finds none left reads nothing.
// To tell a length costs a client nothing, and takes no memory from the others.
func TestBodyThatIsOnlyToldTakesLittle(t *testing.T) {
	mem := share{of: new(memory), limit: 1 << 30}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := readAll(r, 64<<20, 64<<20, &mem)
		done <- err
	}()
	if _, err := w.Write([]byte("{")); err != nil {
		t.Fatal(err)
	}
	if got := mem.of.used.Load(); got != toldAtOnce {
		t.Errorf("a body of which one byte came took %d bytes, want %d", got, toldAtOnce)
	}
	gone := errors.New("the client left")
	_ = w.CloseWithError(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
}

func TestMemoryIsTakenBeforeItIsAllocated(t *testing.T) {
	var all memory
	first := share{of: &all, limit: 100}
	if err := first.grow(80); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{21, -1} {
		second := share{of: &all, limit: 100}
		unread := iotest.ErrReader(errors.New("it was read"))
		_, err := readAll(unread, size, 1000, &second)
		if e, ok := errors.AsType[*fleet.RequestError](err); !ok || e.Reason != fleet.ReasonOverloaded {
			t.Errorf("size %d: got %v, want overloaded", size, err)
		}
		second.release()
	}
	if n := all.used.Load(); n != 80 {
		t.Errorf("got %d set aside, want 80", n)
	}
}

// TestFullBufferIsAnsweredAtOnce holds the body of one request back and sends others.
func TestFullBufferIsAnsweredAtOnce(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Context: 16384})
	e := startEdge(t, nodes("buffer 100KiB", sim), "fleet")
	e.ready()
	const chat = "/v1/chat/completions"
	overloaded := func(encoding string, body io.Reader) {
		t.Helper()
		r := e.request(context.Background(), chat, body)
		if encoding != "" {
			r.Header.Set("Content-Encoding", encoding)
		}
		a := e.do(r)
		wantError(t, a, http.StatusServiceUnavailable, "overloaded")
		if a.Header.Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
	}
	held := dialRequest(t, e, chat, 80<<10, "{")
	await(t, "the body to be expected", func() bool { return e.buffered() == 80<<10 })
	if got := scrape(t, e)["slotfleet_buffer_bytes{}"]; got != 80<<10 {
		t.Errorf("slotfleet_buffer_bytes: got %v, want %d", got, 80<<10)
	}
	large := chatBody("m", strings.Repeat("x", 40<<10), 3, false)
	overloaded("", strings.NewReader(large))
	overloaded("", io.MultiReader(strings.NewReader(large)))
	overloaded("gzip", bytes.NewReader(gzipped(large)))
	overloaded("zstd", bytes.NewReader(zstded(large)))
	if n := sim.Stats().Requests; n != 0 {
		t.Errorf("the server got %d requests, want 0", n)
	}
	if a := e.post(chat, chatBody("m", "hi", 3, false)); a.Status != http.StatusOK {
		t.Errorf("a small request: got %d %s", a.Status, a.Body)
	}
	wantError(t, e.post(chat, strings.Repeat("x", 101<<10)), http.StatusRequestEntityTooLarge, "request_too_large")
	await(t, "the other requests to end", func() bool { return e.buffered() == 80<<10 })

	// What the old configuration's request holds counts for the new one.
	if err := e.load(nodes("buffer 81KiB", sim), "fleet"); err != nil {
		t.Fatal(err)
	}
	if got := e.buffered(); got != 80<<10 {
		t.Errorf("after a reload %d bytes are set aside, want %d", got, 80<<10)
	}
	overloaded("", strings.NewReader(large[:2<<10]))
	held.Close()
	e.wantFree()
	half := chatBody("m", strings.Repeat("x", 30<<10), 3, false) // the node is sent a copy
	if a := e.post(chat, half); a.Status != http.StatusOK {
		t.Errorf("after the memory was given back: got %d %s", a.Status, a.Body)
	}
	e.wantFree()
}

func TestMemoryIsGivenBack(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 100})
	const site = "fleet {\n\t\tmax_body 64KiB\n\t\tread_timeout 300ms\n\t}"
	e := startEdge(t, nodes("", sim), site)
	e.ready()
	const chat = "/v1/chat/completions"
	long := chatBody("m", "hi", 3000, true)
	stream := func(during func()) {
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		resp, err := e.Client.Do(e.request(ctx, chat, strings.NewReader(long)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, least := e.buffered(), int64(2*len(long)); got < least || got > least+2*keepStep {
			t.Errorf("%d bytes are set aside for a body of %d, want at least %d, and not many more", got, len(long), least)
		}
		during()
		leave()
	}
	for name, do := range map[string]func(){
		"answer":      func() { e.post(chat, chatBody("m", "hi", 3, false)) },
		"stream":      func() { e.post(chat, chatBody("m", "hi", 3, true)) },
		"bad request": func() { e.post(chat, "{") },
		"no model":    func() { e.post(chat, chatBody("none", "hi", 3, true)) },
		"too large": func() {
			e.do(e.request(context.Background(), chat, io.MultiReader(strings.NewReader(strings.Repeat("x", 65<<10)))))
		},
		"no gzip": func() {
			r := e.request(context.Background(), chat, strings.NewReader("nonsense"))
			r.Header.Set("Content-Encoding", "gzip")
			e.do(r)
		},
		"bomb": func() {
			r := e.request(context.Background(), chat, bytes.NewReader(gzipped(strings.Repeat("x", 1<<20))))
			r.Header.Set("Content-Encoding", "gzip")
			e.do(r)
		},
		"too late":    func() { _, _ = io.ReadAll(dialRequest(t, e, chat, 100, "{")) },
		"client gone": func() { stream(func() {}) },
		"reload": func() {
			stream(func() {
				if err := e.load(nodes("retry 4s", sim), site); err != nil {
					t.Fatal(err)
				}
			})
		},
		"panic": func() {
			defer func() { _ = recover() }()
			direct(chatBody("m", "hi", 3, false), &brokenWriter{panics: true})
		},
		"break": func() {
			sim.SetFault(llamasim.Fault{Kind: llamasim.FaultError, Token: 2, Times: 1})
			e.post(chat, chatBody("m", "hi", 5, true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			do()
			(&edge{t: t}).wantFree()
		})
	}
}
