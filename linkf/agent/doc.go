// Package agent runs one llama-server for heads elsewhere: it is what a node behind NAT
// runs. It puts a [linkf.Node] in front of a [llamacpp.Link]:
//
//	heads ◄─ linkf, dialled by either side ─► linkf.Node ─ fleet.Link ─► llama-server
//	                                                            ▲
//	                                              slotlog.Source, its log
//
// The server is asked what it is at the start and when a head probes the node; after
// that its log, where there is one, says what it carries. The slots that it shows go to
// the heads as [linkf.Log]: linkf knows nothing of logs, so that slotlog's words are
// turned into those of linkf and back here.
package agent
