-- alive(channel): whether the process that listens to a channel is connected to this server.
-- The count that PUBLISH returns is no help: it includes clients that subscribed to a pattern, and a cluster repeats a
-- message at its other nodes. If this user may not call PUBSUB, the process counts as alive.
local function alive(channel)
    local found = redis.pcall('PUBSUB', 'NUMSUB', channel)
    return found.err ~= nil or found[2] > 0
end
