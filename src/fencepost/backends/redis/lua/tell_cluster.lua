-- tell(channel, message): send it; false if nobody receives it at this node.
-- A cluster repeats a message at its other nodes, where one who was to be skipped might receive it all the same.
local function tell(channel, message)
    return redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 and redis.call('PUBLISH', channel, message) > 0
end
