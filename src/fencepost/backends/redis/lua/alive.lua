-- alive(channel): whether the process that listens to a channel is connected to this server.
-- Not by what PUBLISH counts: that includes clients who subscribed to a pattern, and a cluster repeats a message at its
-- other nodes. A user who may not ask takes it for alive.
local function alive(channel)
    local found = redis.pcall('PUBSUB', 'NUMSUB', channel)
    return found.err ~= nil or found[2] > 0
end
