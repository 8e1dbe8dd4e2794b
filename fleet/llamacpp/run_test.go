package llamacpp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

// streaming is a server that answers every request with the given bytes, then does
// end to the connection.
func streaming(t *testing.T, answer string, end func(net.Conn)) *rawServer {
	t.Helper()
	return serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err != nil {
			return
		}
		fmt.Fprint(c, answer)
		if end != nil {
			end(c)
		}
	})
}

func TestStreamIsHandedOnEventByEvent(t *testing.T) {
	for _, r := range recordings(t) {
		if !strings.HasPrefix(r.Response.Headers["content-type"], "text/event-stream") {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				if req.Method != "POST" || req.URL.Path != r.Request.Path || string(body) != r.Request.Body {
					t.Errorf("got %s %s with %.60q", req.Method, req.URL.Path, body)
				}
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, r.Response.Body)
			})
			var h heard
			a := fleet.Assignment{Path: r.Request.Path, Body: []byte(r.Request.Body)}
			if err := newLink(t, Options{URL: s.URL}).Run(t.Context(), a, h.take); err != nil {
				t.Fatal(err)
			}
			var want []string
			for l := range strings.Lines(r.Response.Body) {
				if d, ok := strings.CutPrefix(strings.TrimSuffix(l, "\n"), "data: "); ok && d != "[DONE]" {
					want = append(want, d)
				}
			}
			if d := cmp.Diff(want, h.data()); d != "" {
				t.Errorf("data (-want +got):\n%s", d)
			}
			if h.events[0].Kind != fleet.EventOpen {
				t.Errorf("got first event %v, want open", h.events[0])
			}
		})
	}
}

func TestEndOfAStreamSaysHowTheNodeWasLost(t *testing.T) {
	const one = "data: {\"a\":1}\n\n"
	for _, tt := range []struct {
		name, answer string
		end          func(net.Conn)
		cause        fleet.Cause // empty: no error
		events       int         // data
	}{
		{"clean", streamHead + chunk(one) + lastChunk, nil, "", 1},
		{"clean, no blank line", streamHead + chunk("data: {\"a\":1}") + lastChunk, nil, "", 1},
		{"done", streamHead + chunk(one) + chunk("data: [DONE]\n\n") + lastChunk, nil, "", 1},
		{"done, then broken", streamHead + chunk(one) + chunk("data: [DONE]\n\n"), nil, "", 1},
		{"null is nothing", streamHead + chunk(one) + chunk("data: null\n\ndata: \n\n") + lastChunk, nil, "", 1},
		{"no terminating chunk", streamHead + chunk(one), nil, fleet.CauseClosed, 1},
		{"half an event", streamHead + chunk(one+"data: {\"b\":"), nil, fleet.CauseClosed, 1},
		{"half an event, clean", streamHead + chunk(one+"data: {\"b\":") + lastChunk, nil, fleet.CauseClosed, 1},
		{"half a chunk", streamHead + "ff\r\n" + one, nil, fleet.CauseClosed, 1},
		{"reset", streamHead + chunk(one), reset, fleet.CauseReset, -1},
		{"a router's last words", streamHead + chunk(one) + chunk("proxy error: Failed to read connection") + lastChunk, nil, fleet.CauseClosed, 1},
		{"a router's last words inside an event", streamHead + chunk(one) + chunk("data: {\"bproxy error: Failed") + lastChunk, nil, fleet.CauseClosed, 1},
		{"no answer", "", nil, fleet.CauseClosed, 0},
		{"reset before the answer", "", reset, fleet.CauseReset, 0},
		{"half a head", "HTTP/1.1 200 O", nil, fleet.CauseClosed, 0},
		{"no HTTP", "SSH-2.0-x\r\n\r\n", nil, fleet.CauseClosed, 0},
		{"endless head", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100<<10), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, fleet.CauseClosed, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := streaming(t, tt.answer, tt.end)
			var h heard
			err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, h.take)
			if tt.cause == "" {
				if err != nil {
					t.Fatalf("got %v, want no error", err)
				}
			} else {
				wantLost(t, err, tt.cause)
			}
			// What a reset overtakes may be lost with it.
			if n := len(h.data()); n != tt.events && tt.events >= 0 {
				t.Errorf("got %d events, want %d: %q", n, tt.events, h.data())
			}
		})
	}
}

func TestTextThatCannotBeReadIsNotRepeatedInErrors(t *testing.T) {
	const one = "data: {\"a\":1}\n\n"
	for _, tt := range []struct{ name, answer, want string }{
		{"half an answer", streamHead + chunk("data: {\"content\":\"my password\n is hunter2\"}\n\n"), "13 bytes of text that is no event"},
		{"half an answer at the end", streamHead + chunk(one+"hunter2") + lastChunk, "7 bytes of text that is no event"},
		{"half an event", streamHead + chunk(one+"data: {\"b\":\"hunter2") + lastChunk, "the stream ended inside an event"},
		{"a router's last words", streamHead + chunk(one+"proxy error: Failed to read connection\nhunter2"), "proxy error: Failed to read connection"},
		{"a long last word", streamHead + chunk(one+"proxy error: "+strings.Repeat("x", 187)+"hunter2\n"), strings.Repeat("x", 187) + "…"},
		{"an error event", streamHead + chunk("data: {\"error\":{\"message\":\"hunter2\"}}\n\n"), "(status 500, "},
		{"an error event that is known", streamHead + chunk("data: {\"error\":{\"message\":\"got exception: hunter2: 'hunter2'\"}}\n\n"), "got exception: "},
		{"no HTTP", "hunter2\r\n\r\n", "no HTTP/1.1 answer"},
		{"a broken header", "HTTP/1.1 200 OK\r\nhunter2\r\n\r\n", "no HTTP/1.1 answer"},
		{"a broken length", "HTTP/1.1 200 OK\r\nContent-Length: hunter2\r\n\r\n", "no HTTP/1.1 answer"},
		{"a broken chunk", streamHead + "hunter2\r\n", "no HTTP/1.1 answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := streaming(t, tt.answer, nil)
			err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, discard)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want nothing of the answer in it", err)
			}
		})
	}
}

func TestDoneEndsTheAnswerThoughTheConnectionStays(t *testing.T) {
	s := streaming(t, streamHead+chunk("data: {\"a\":1}\n\ndata: [DONE]\n\n"), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	var h heard
	if err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, h.take); err != nil || len(h.data()) != 1 {
		t.Fatalf("got %d events, %v", len(h.data()), err)
	}
}

func TestErrorEventsEndTheRun(t *testing.T) {
	for body, want := range map[string]string{
		`data: {"error":{"code":500,"message":"Compute error.","type":"server_error"}}`:                         "lost crashed",
		`data: { "error" : {"code":500,"message":"Compute error."}}`:                                            "lost crashed",
		`error: {"code":500,"message":"Context size has been exceeded.","type":"server_error"}`:                 "overloaded again",
		"event: error\ndata: {\"code\":500,\"message\":\"Compute error.\",\"type\":\"server_error\"}":           "lost crashed",
		`data: {"error":{"code":500,"message":"The model produced output that does not match the expected x"}}`: "broken_output again reply",
		`data: {"choices":[{"delta":{"content":"{\"error\":{\"code\":500,\"message\":\"Compute error.\"}}"}}]}`: "<nil>",
		`data: {"error":null,"choices":[]}`:                                                                     "<nil>",
		`data: {"errors":[]}`:                                                                                   "<nil>",
		"data: {\"content\":\"proxy error: x\"}":                                                                "<nil>",
	} {
		s := streaming(t, streamHead+chunk("data: {\"a\":1}\n\n"+body+"\n\n")+lastChunk, nil)
		var h heard
		err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, h.take)
		if got := verdictOf(err); got != want {
			t.Errorf("%s: got %s (%v), want %s", body, got, err, want)
		}
		var lost *fleet.NodeLost
		if errors.As(err, &lost) && lost.Node != "n1" {
			t.Errorf("%s: the error names node %q", body, lost.Node)
		}
		if n, want := len(h.data()), map[bool]int{true: 2, false: 1}[want == "<nil>"]; n != want {
			t.Errorf("%s: got %d events, want %d", body, n, want)
		}
	}
}

func TestTooLongEventIsBrokenOutput(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: ")
		b := make([]byte, 1<<20)
		for range 18 {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	err := newLink(t, Options{URL: s.URL}).Run(t.Context(), chat, func(fleet.Event) error { return nil })
	wantRequestError(t, err, fleet.ReasonBroken)
}

func TestAnswersThatAreNoStream(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		head   http.Header
		body   string
		want   string
	}{
		{"JSON", 200, http.Header{"Content-Type": {"application/json"}}, `{"choices":[]}`, "declined again"},
		{"no type", 200, http.Header{"Content-Type": nil}, `data: {}`, "declined again"},
		{"too long", 400, nil, `{"error":{"code":400,"message":"m","type":"exceed_context_size_error","n_prompt_tokens":5,"n_ctx":4}}`, "too_long again reply"},
		{"loading", 503, nil, errorBody(503, "Loading model"), "lost loading"},
		{"wrong key", 401, nil, errorBody(401, "Invalid API Key"), "no_node again"},
		{"huge", 500, nil, strings.Repeat("x", 3<<20), "refused again reply"},
		{"empty", 413, nil, "", "refused reply"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				maps.Copy(w.Header(), tt.head)
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.body)
			})
			var h heard
			err := newLink(t, Options{URL: s.URL, Key: "s3cret"}).Run(t.Context(), chat, h.take)
			if got := verdictOf(err); got != tt.want {
				t.Errorf("got %s (%.300v), want %s", got, err, tt.want)
			}
			if len(h.events) != 0 {
				t.Errorf("got events %v before the objection", h.kinds())
			}
			if e, ok := errors.AsType[*fleet.RequestError](err); ok {
				for _, secret := range []string{"n1", "s3cret", "127.0.0.1"} {
					if strings.Contains(e.Message, secret) {
						t.Errorf("the client's message %q names %q", e.Message, secret)
					}
				}
			}
		})
	}
}

func TestWrongKeyTellsTheOperatorWhichNode(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(401)
		fmt.Fprint(w, errorBody(401, "Invalid API Key"))
	})
	err := newLink(t, Options{URL: s.URL, Key: "s3cret"}).Run(t.Context(), chat, func(fleet.Event) error { return nil })
	e := wantRequestError(t, err, fleet.ReasonNoNode)
	if e.Reply != nil || e.Err == nil || !strings.Contains(e.Err.Error(), "n1") || !strings.Contains(e.Err.Error(), "key") ||
		strings.Contains(err.Error(), "s3cret") {
		t.Fatalf("got %v, reply %v, want a word to the operator and no 401 for the client", err, e.Reply)
	}
}

func TestErrorOfTheJobComesBackAsItIs(t *testing.T) {
	stop := errors.New("stop")
	for n := range 3 {
		left := make(chan struct{})
		s := streaming(t, streamHead+chunk("data: {\"a\":1}\n\n:\n\n"), func(c net.Conn) {
			_, _ = io.Copy(io.Discard, c)
			close(left)
		})
		i := 0
		err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, func(fleet.Event) error {
			if i++; i > n {
				return stop
			}
			return nil
		})
		if err != stop || i != n+1 {
			t.Fatalf("got %v after %d events, want the job's error after %d", err, i, n+1)
		}
		waitFor(t, "the end of the connection", left)
	}
}

func TestEndOfTheContextClosesTheConnection(t *testing.T) {
	gone := errors.New("the client left")
	for _, when := range []string{"before the answer", "in the stream", "while the client is slow"} {
		t.Run(when, func(t *testing.T) {
			left, asked := make(chan struct{}), make(chan struct{})
			s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
				if _, _, err := request(r); err != nil {
					return
				}
				if when != "before the answer" {
					fmt.Fprint(c, streamHead+chunk("data: {\"a\":1}\n\ndata: {\"a\":2}\n\n"))
				}
				close(asked)
				_, _ = r.ReadByte()
				close(left)
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			if when == "before the answer" {
				go func() {
					<-asked
					cancel(gone)
				}()
			}
			var h heard
			err := newLink(t, Options{URL: s.url()}).Run(ctx, chat, func(e fleet.Event) error {
				_ = h.take(e)
				switch {
				case e.Kind == fleet.EventData && when == "while the client is slow":
					cancel(gone)
					waitFor(t, "the end of the connection", left)
				case string(e.Data) == `{"a":2}`:
					cancel(gone)
				}
				return nil
			})
			if err != gone {
				t.Fatalf("got %v, want the cause of the context", err)
			}
			waitFor(t, "the end of the connection", left)
			if when == "while the client is slow" && len(h.data()) != 1 {
				t.Errorf("got %q after the context ended", h.data())
			}
		})
	}
}

func TestEventsOfARunComeInOrderWithTheirFigures(t *testing.T) {
	s := streaming(t, streamHead+chunk(":\n\n"+
		`data: {"prompt_progress":{"total":9,"cache":3,"processed":3}}`+"\n\n"+
		`data: {"a":1,"timings":{"cache_n":3,"prompt_n":6,"predicted_n":1}}`+"\n\n")+lastChunk, nil)
	var h heard
	if err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, h.take); err != nil {
		t.Fatal(err)
	}
	want := []fleet.EventKind{fleet.EventOpen, fleet.EventAlive, fleet.EventData, fleet.EventData}
	if !slices.Equal(h.kinds(), want) {
		t.Fatalf("got kinds %v, want %v", h.kinds(), want)
	}
	if p := h.events[2].Progress; p == nil || p.Total != 9 || p.Cached != 3 {
		t.Errorf("got progress %+v", p)
	}
	if tm := h.events[3].Timings; tm == nil || tm.Prompt != 6 || tm.Predicted != 1 {
		t.Errorf("got timings %+v", tm)
	}
}

func TestPathWithoutASlashIsNotSent(t *testing.T) {
	l := newLink(t, Options{URL: "http://127.0.0.1:1"})
	if err := l.Run(t.Context(), fleet.Assignment{Path: "@evil.example/"}, nil); err == nil || !strings.Contains(err.Error(), "slash") {
		t.Fatalf("got %v", err)
	}
}

func TestBodyIsFreeWhenRunReturns(t *testing.T) {
	// The server answers before it read the request. With -race this sees a transport
	// that still reads the body.
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			fmt.Fprint(c, "HTTP/1.1 413 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			_, _ = io.Copy(io.Discard, r)
		}
	})
	l := newLink(t, Options{URL: s.url()})
	body := make([]byte, 16<<20)
	for range 3 {
		_ = l.Run(t.Context(), fleet.Assignment{Path: chat.Path, Body: body}, discard)
		for i := range body {
			body[i]++
		}
	}
}

func TestLastTimingsAreMeasuredHoweverTheRunEnds(t *testing.T) {
	token := func(n int) string {
		return chunk(fmt.Sprintf(`data: {"a":%d,"timings":{"cache_n":3,"prompt_n":6,"predicted_n":%d,"predicted_per_second":1.5}}`+"\n\n", n, n))
	}
	full := errors.New("full")
	for _, tt := range []struct {
		name, stream string
		take         error // of the second token
		want         []fleet.Timings
	}{
		{"whole", token(1) + token(2) + chunk("data: {\"a\":3}\n\n") + lastChunk, nil, []fleet.Timings{{Cached: 3, Prompt: 6, Predicted: 2, PredictedPerSecond: 1.5}}},
		{"lost", token(1) + token(2) + token(3), nil, []fleet.Timings{{Cached: 3, Prompt: 6, Predicted: 3, PredictedPerSecond: 1.5}}},
		{"not taken", token(1) + token(2) + token(3) + lastChunk, full, []fleet.Timings{{Cached: 3, Prompt: 6, Predicted: 2, PredictedPerSecond: 1.5}}},
		{"nothing was told", chunk("data: {\"a\":1}\n\n") + lastChunk, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []fleet.Timings
			a := chat
			a.Measured = func(last fleet.Timings) { got = append(got, last) }
			s := streaming(t, streamHead+tt.stream, nil)
			_ = newLink(t, Options{URL: s.url()}).Run(t.Context(), a, func(e fleet.Event) error {
				if e.Timings != nil {
					t.Errorf("%q has timings", e.Data)
				}
				if strings.HasPrefix(string(e.Data), `{"a":2`) {
					return tt.take
				}
				return nil
			})
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
