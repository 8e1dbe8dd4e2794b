package caddymodule

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What a key may is held to the request: never more at once, never more in any minute,
// and never less than it may.
func TestLimitsOfAKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		concurrent := rapid.IntRange(0, 4).Draw(t, "concurrent")
		perMinute := rapid.IntRange(0, 6).Draw(t, "per minute")
		start := time.Unix(0, 0)
		now, u := start, new(usage)
		var begun []time.Time // that were let through while there was a limit
		running := 0
		inMinute := func(at time.Time) (n int) {
			for _, b := range begun {
				if at.Sub(b) < time.Minute {
					n++
				}
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			},
			"limit": func(t *rapid.T) {
				concurrent = rapid.IntRange(0, 4).Draw(t, "concurrent")
				perMinute = rapid.IntRange(1, 6).Draw(t, "per minute")
			},
			"begin": func(t *rapid.T) {
				q, over := u.begin(now, concurrent, perMinute)
				tooMany := perMinute > 0 && inMinute(now) >= perMinute
				tooWide := concurrent > 0 && running >= concurrent
				if (over != nil) != (tooMany || tooWide) {
					t.Fatalf("got %+v with %d running of %d, %d in this minute of %d", over, running, concurrent, inMinute(now), perMinute)
				}
				if over != nil {
					if over.concurrent == tooMany {
						t.Fatalf("got %+v, want the limit for each minute first", over)
					}
					if tooMany {
						if over.again <= 0 || inMinute(now.Add(over.again)) >= perMinute || inMinute(now.Add(over.again-1)) < perMinute {
							t.Fatalf("told to come again in %s, which is too early or too late", over.again)
						}
					}
					return
				}
				running++
				if perMinute > 0 {
					begun = append(begun, now)
					if want := perMinute - inMinute(now); q.limit != perMinute || q.left != want || q.renewed != time.Minute {
						t.Fatalf("got %+v, want %d of %d left, and all in a minute", q, want, perMinute)
					}
				} else if q != (quota{}) {
					t.Fatalf("got %+v without a limit", q)
				}
			},
			"end": func(t *rapid.T) {
				if running == 0 {
					t.Skip("nothing runs")
				}
				u.end()
				running--
			},
			"": func(t *rapid.T) {
				if u.running != running {
					t.Fatalf("got %d running, want %d", u.running, running)
				}
			},
		})
	})
}
