//go:build unix

package caddymodule

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkStreamedChunk measures the CPU of the edge for each chunk, in turns with
// reverse_proxy in the same process. Chunks are counted at the clients. In turns, no two
// chunks of a stream can meet, so that each is read, written and flushed by itself, whoever
// is in between; at a rate, some do where the machine is busy.
func BenchmarkStreamedChunk(b *testing.B) {
	p := startPeer(b)
	b.Run("in_turns", func(b *testing.B) { streamedChunks(b, p, p.turns, 8) })
	b.Run("at_40_a_second", func(b *testing.B) { streamedChunks(b, p, p.paced, peerStreams) })
}

// sideBySide is a site where the same node is behind reverse_proxy and behind fleets.
func sideBySide(b *testing.B, node string) *edge {
	const site = `
	handle_path /proxy/* {
		reverse_proxy %s {
			flush_interval -1
		}
	}
	handle_path /on/* {
		fleet
	}
	handle_path /off/* {
		fleet {
			resume off
		}
	}`
	e := startEdge(b, "fleet {\n\t\tnode a "+node+"\n\t}", fmt.Sprintf(site, node))
	e.Client.Timeout = 10 * time.Minute
	e.allUp(1)
	return e
}

// tell tells the clients what to do by that way through the edge, n of them or n times,
// and returns what they say.
func (e *edge) tell(p peer, do, way string, n int) answer {
	return e.get(fmt.Sprintf("%s/?do=%s&n=%d&edge=%s/%s", p.clients, do, n, e.URL, way))
}

// have is tell for what they count.
func (e *edge) have(p peer, do, way string, n, least int) int {
	a := e.tell(p, do, way, n)
	got, err := strconv.Atoi(a.Body)
	if err != nil || got < least {
		e.t.Fatalf("%s by %s: the clients got %s, want %d: %v", do, way, a.Body, least, a.Err)
	}
	return got
}

func streamedChunks(b *testing.B, p peer, node string, streams int) {
	e := sideBySide(b, node)
	ways := []string{"proxy", "on", "off"}
	took := make(map[string][]float64)
	for b.Loop() {
		for _, way := range ways {
			before := cpu(b)
			chunks := e.have(p, "streams", way, streams, streams*(peerTokens-2))
			took[way] = append(took[way], micros(cpu(b)-before)/float64(chunks))
		}
	}
	compare(b, "µs/chunk", took, ways...)
}

// BenchmarkShortCall measures the CPU of the edge for a call that is answered whole.
func BenchmarkShortCall(b *testing.B) {
	p := startPeer(b)
	e := sideBySide(b, p.fast)
	took := make(map[string][]float64)
	for b.Loop() {
		for _, way := range []string{"proxy", "on"} {
			before := cpu(b)
			calls := e.have(p, "calls", way, 8, 8*peerCalls)
			took[way] = append(took[way], micros(cpu(b)-before)/float64(calls))
		}
	}
	compare(b, "µs/call", took, "proxy", "on")
}

// BenchmarkFirstByte measures the time to the first byte of a stream, at 200 requests a
// second that wait for nothing, in turns with reverse_proxy.
func BenchmarkFirstByte(b *testing.B) {
	p := startPeer(b)
	e := sideBySide(b, p.fast)
	// The stand-in closes the connection of a stream without a word, as llama-server does,
	// and reverse_proxy does not repeat a POST that met one.
	const round = 400
	least := map[string]int{"proxy": round * 9 / 10, "on": round}
	took := make(map[string][]float64)
	for b.Loop() {
		for _, way := range []string{"proxy", "on"} {
			said := strings.Fields(strings.Trim(e.tell(p, "first", way, round).Body, "[]"))
			if len(said) < least[way] {
				b.Fatalf("by %s: %d requests of %d were answered", way, len(said), round)
			}
			for _, x := range said {
				n, err := strconv.ParseFloat(x, 64)
				if err != nil {
					b.Fatal(err)
				}
				took[way] = append(took[way], n)
			}
		}
	}
	for way, all := range took {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], "µs-p50-"+way)
		b.ReportMetric(all[len(all)*99/100], "µs-p99-"+way)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWholeAnswer measures the CPU of the edge for an answer that is not streamed to
// its client, against the same one streamed.
func BenchmarkWholeAnswer(b *testing.B) {
	p := startPeer(b)
	e := sideBySide(b, p.paced)
	took := make(map[string][]float64)
	for b.Loop() {
		before := cpu(b)
		e.have(p, "streams", "on", peerStreams, peerStreams*(peerTokens-2))
		took["streamed"] = append(took["streamed"], micros(cpu(b)-before)/peerStreams)
		before = cpu(b)
		e.have(p, "answers", "on", peerStreams, peerStreams)
		took["whole"] = append(took["whole"], micros(cpu(b)-before)/peerStreams)
	}
	compare(b, "µs/answer", took, "streamed", "whole")
}

// BenchmarkOpenStreams measures the resident memory of the edge for each stream that is
// open and silent.
func BenchmarkOpenStreams(b *testing.B) {
	p := startPeer(b)
	for _, streams := range []int{1000, peerHeld} {
		b.Run(strconv.Itoa(streams), func(b *testing.B) {
			e := sideBySide(b, p.slow)
			takes := make(map[string][]float64)
			for b.Loop() {
				for _, way := range []string{"proxy", "on"} {
					before := resident(b)
					e.have(p, "hold", way, streams, streams)
					takes[way] = append(takes[way], float64(resident(b)-before)/1024/float64(streams))
					e.get(p.clients + "/?do=leave")
					await(b, "the lanes to be free", func() bool { return lanesHeld(e) == "" })
				}
			}
			compare(b, "KiB/stream", takes, "proxy", "on")
		})
	}
}

// resident is the memory of this process, without what it does not need.
func resident(b *testing.B) int64 {
	debug.FreeOSMemory()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Skip("left out: memory of the process (no /proc)")
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// compare reports the medians of ways, and how they stand to the first.
func compare(b *testing.B, unit string, took map[string][]float64, ways ...string) {
	first := ways[0]
	for _, way := range ways {
		b.ReportMetric(median(took[way]), unit+"-"+way)
		if way == first {
			continue
		}
		ratios := make([]float64, len(took[way]))
		for i := range ratios {
			ratios[i] = took[way][i] / took[first][i]
		}
		b.ReportMetric(median(ratios), way+"/"+first)
	}
	b.ReportMetric(0, "ns/op")
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
