-- tell(channel, message): send it; false if nobody receives it.
local function tell(channel, message)
    return redis.call('PUBLISH', channel, message) > 0
end
