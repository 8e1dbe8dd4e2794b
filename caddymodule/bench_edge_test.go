//go:build unix

package caddymodule

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"
)

// BenchmarkStreamedChunk measures the CPU of the edge for each chunk, in turns with
// reverse_proxy in the same process. Chunks are counted at the clients. In turns, no two
// chunks of a stream can meet, so that each is read, written and flushed by itself, whoever
// is in between; at a rate, some do where the machine is busy.
func BenchmarkStreamedChunk(b *testing.B) {
	p := startPeer(b)
	b.Run("in_turns", func(b *testing.B) { streamedChunks(b, p.turns, p.clients, 8) })
	b.Run("at_40_a_second", func(b *testing.B) { streamedChunks(b, p.paced, p.clients, peerStreams) })
}

func streamedChunks(b *testing.B, node, clients string, streams int) {
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
	e.allUp(1)
	ways := []string{"proxy", "on", "off"}
	took := make(map[string][]float64)
	for b.Loop() {
		for _, way := range ways {
			before := cpu(b)
			a := e.get(fmt.Sprintf("%s/?n=%d&edge=%s/%s", clients, streams, e.URL, way))
			spent := cpu(b) - before
			chunks, err := strconv.Atoi(a.Body)
			if err != nil || chunks < streams*(peerTokens-2) {
				b.Fatalf("%s: the clients got %s chunks: %v", way, a.Body, a.Err)
			}
			took[way] = append(took[way], float64(spent)/float64(chunks)/float64(time.Microsecond))
		}
	}
	for _, way := range ways {
		b.ReportMetric(median(took[way]), "µs/chunk-"+way)
	}
	for _, way := range ways[1:] {
		ratios := make([]float64, len(took[way]))
		for i := range ratios {
			ratios[i] = took[way][i] / took["proxy"][i]
		}
		b.ReportMetric(median(ratios), way+"/proxy")
	}
	b.ReportMetric(0, "ns/op")
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
