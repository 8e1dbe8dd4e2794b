package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	caddy.RegisterModule(FleetApp{})
	caddy.RegisterModule(SlotlogApp{})
	caddy.RegisterModule(NodeApp{})
	caddy.RegisterModule(Handler{})
	caddy.RegisterModule(JoinHandler{})
	caddy.RegisterModule(FleetKeys{})
	caddy.RegisterModule(fleetAdmin{})
	caddy.RegisterModule(slotlogAdmin{})

	httpcaddyfile.RegisterGlobalOption("fleet", parseFleetOption)
	httpcaddyfile.RegisterGlobalOption("slotlog", parseSlotlogOption)
	httpcaddyfile.RegisterGlobalOption("fleet_node", parseNodeOption)
	httpcaddyfile.RegisterHandlerDirective("fleet", parseHandler)
	httpcaddyfile.RegisterHandlerDirective("fleet_keys", parseFleetKeys)
	httpcaddyfile.RegisterHandlerDirective("fleet_join", parseJoinHandler)
	httpcaddyfile.RegisterDirectiveOrder("fleet_join", httpcaddyfile.Before, "reverse_proxy")
	httpcaddyfile.RegisterDirectiveOrder("fleet", httpcaddyfile.Before, "reverse_proxy")
	httpcaddyfile.RegisterDirectiveOrder("fleet_keys", httpcaddyfile.After, "basic_auth")
}
